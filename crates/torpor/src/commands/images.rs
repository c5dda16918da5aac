//! `images`.

use std::path::PathBuf;

use jiff::Timestamp;
use torpor_api::client::Client;
use torpor_api::spec::Source;
use torpor_api::wire::ImageRequest;

use super::{print, run, show, terminal_columns};
use crate::cli::ImagesCommand;
use crate::failure::Failure;
use crate::output;
use crate::progress::Bars;

pub(super) async fn ls(client: &Client, json: bool) -> Result<(), Failure> {
    let images = client.images().await?;
    show(json, &images, |images| output::images(images, terminal_columns(), Timestamp::now()))
}

pub(super) async fn change(client: &Client, command: ImagesCommand) -> Result<i32, Failure> {
    match command {
        ImagesCommand::Ls(json) => ls(client, json.json).await.map(|()| 0),
        ImagesCommand::Load { name, source, oci_layout, docker_archive } => {
            let source = run::hint(oci_layout, docker_archive).detect(&source)?;
            store(client, ImageRequest { name, source: absolute(source)? }).await
        }
        ImagesCommand::Pull { reference, name } => {
            let name = name.unwrap_or_else(|| reference.clone());
            store(client, ImageRequest { name, source: Source::Registry { reference } }).await
        }
        ImagesCommand::Rm { names } => {
            let mut code = 0;
            for name in names {
                match client.remove_image(&name).await {
                    Ok(()) => print(format!("image {name} is removed\n").as_bytes())?,
                    Err(error) => {
                        let failed = Failure::from(error).report();
                        code = if code == 0 { failed } else { code };
                    }
                }
            }
            Ok(code)
        }
    }
}

async fn store(client: &Client, request: ImageRequest) -> Result<i32, Failure> {
    let mut bars = Bars::new();
    let stored = client.store_image(&request, |step| bars.step(&step)).await;
    bars.clear();
    print(format!("image {} is stored\n", stored?).as_bytes()).map(|()| 0)
}

/// The daemon has another working directory than we.
fn absolute(mut source: Source) -> Result<Source, Failure> {
    if let Source::Tarball { path, .. } | Source::OciLayout { path, .. } | Source::DockerArchive { path, .. } =
        &mut source
    {
        let full = std::path::absolute(&*path);
        *path = full.map_err(|source| Failure::Read { path: PathBuf::clone(path), source })?;
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use torpor_api::parse::SourceHint;

    use super::*;

    #[test]
    fn paths_are_made_absolute_and_names_are_left() {
        let source = absolute(SourceHint::OciLayout.detect("some/dir:v1").unwrap()).unwrap();
        let Source::OciLayout { path, reference } = source else { panic!("another source") };
        assert!(path.is_absolute() && path.ends_with("some/dir"));
        assert_eq!(reference.as_deref(), Some("v1"));
        let named = Source::Stored { name: "x".to_owned() };
        assert_eq!(absolute(named.clone()).unwrap(), named);
    }
}
