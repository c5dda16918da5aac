//! Images of processes: looked into as files, without the daemon; those of its apps are listed and removed by it.

use std::path::Path;

use torpor_api::client::Client;
use torpor_api::worker::Progress;
use torpor_store::{ImageFile, compare_memory};

use super::{print, show, terminal_columns};
use crate::cli::ImageCommand;
use crate::failure::Failure;
use crate::output::{self, ImageDifference, ImageView, VerifiedView};
use crate::progress::Bars;

/// Runs a command on images; gives the exit code.
pub(super) fn image(command: &ImageCommand) -> Result<i32, Failure> {
    match command {
        ImageCommand::Inspect { image, json } => {
            let file = ImageFile::open(image)?;
            let view = ImageView::of(&file, &file.contents()?);
            show(json.json, &view, |view| output::inspected(view, jiff::Timestamp::now()))?;
        }
        ImageCommand::Verify { images, json } => {
            let verified = images.iter().map(|image| verify(image)).collect::<Result<Vec<_>, _>>()?;
            show(json.json, &verified, |verified| output::verified(verified))?;
        }
        ImageCommand::Diff { first, second, json } => {
            let (first, second) = (ImageFile::open(first)?, ImageFile::open(second)?);
            let (before, after) = (first.contents()?, second.contents()?);
            let memory = compare_memory((&first, &before), (&second, &after))?;
            let views = (ImageView::of(&first, &before), ImageView::of(&second, &after));
            let difference = ImageDifference::of(&views.0, &views.1, &memory);
            show(json.json, &difference, output::difference)?;
        }
        // The daemon is asked.
        ImageCommand::Ls(_) | ImageCommand::Rm { .. } | ImageCommand::Export(_) | ImageCommand::Import(_) => {}
    }
    Ok(0)
}

/// Images of the apps' processes.
pub(super) async fn ls(client: &Client, json: bool) -> Result<(), Failure> {
    let images = client.app_images().await?;
    show(json, &images, |images| output::app_images(images, terminal_columns(), jiff::Timestamp::now()))
}

/// Removes the images of apps that nothing uses; goes on with the next app where one refuses.
pub(super) async fn rm(client: &Client, apps: &[String]) -> Result<i32, Failure> {
    let mut code = 0;
    for app in apps {
        match client.remove_app_images(app).await {
            Ok(removed) => {
                for image in removed {
                    let text = format!("image {} of {} is removed\n", image.generation, output::safe(&image.app));
                    print(text.as_bytes())?;
                }
            }
            Err(error) => {
                let failed = Failure::from(error).report();
                code = if code == 0 { failed } else { code };
            }
        }
    }
    Ok(code)
}

fn verify(path: &Path) -> Result<VerifiedView, Failure> {
    let file = ImageFile::open(path)?;
    let what = file.path().display().to_string();
    let mut bars = Bars::new();
    // What forked processes share is counted once, so this is the most that there can be.
    let total_bytes = Some(file.header().pages_bytes);
    let verified = file.verify(|done_bytes| bars.step(&Progress { what: what.clone(), done_bytes, total_bytes }))?;
    Ok(VerifiedView { image: what, regions: verified.regions, page_bytes: verified.page_bytes })
}
