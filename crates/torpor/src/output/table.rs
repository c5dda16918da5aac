//! Tables with aligned columns, at a terminal no wider than it.
//!
//! A table that does not fit becomes narrower in [steps](Narrow) which whoever prints it lists, what matters least first. Where the
//! output is no terminal, nothing is left out: somebody may read the columns by their numbers.

/// One row of cells.
pub(crate) type Cells = Vec<String>;

/// Spaces between two columns.
const GAP: usize = 2;

/// One way to make a table narrower; a column is named by its head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Narrow {
    /// The longest cells of a column lose their ends, down to so many characters.
    Cut(&'static str, usize),
    /// A column is left out.
    Drop(&'static str),
}

/// A table with two spaces between its columns; columns whose head begins with `>` are flush right.
pub(crate) fn table(head: &[&str], rows: &[Cells]) -> String {
    let names: Vec<&str> = head.iter().map(|name| name.trim_start_matches('>')).collect();
    let widths: Vec<usize> = (0..head.len()).map(|column| column_width(head, rows, column)).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            if column > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            let right = head[column].starts_with('>');
            let (before, after) = if right { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line.push_str(before);
            line.push_str(cell);
            line.push_str(after);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut names.iter().copied());
    for row in rows {
        line(&mut row.iter().take(head.len()).map(String::as_str));
    }
    text
}

/// As [`table`], made narrower by one step after the other until it is at most `most` characters wide or no step is left. `None`:
/// it may be as wide as it is.
pub(crate) fn table_within(most: Option<usize>, head: &[&str], rows: &[Cells], steps: &[Narrow]) -> String {
    let Some(most) = most else { return table(head, rows) };
    let (mut head, mut rows) = (head.to_vec(), rows.to_vec());
    for step in steps {
        let excess = width(&head, &rows).saturating_sub(most);
        if excess == 0 {
            break;
        }
        let (Narrow::Cut(name, _) | Narrow::Drop(name)) = *step;
        let Some(at) = head.iter().position(|head| head.trim_start_matches('>') == name) else { continue };
        match *step {
            Narrow::Cut(_, least) => shorten(&mut rows, at, excess, least),
            Narrow::Drop(_) => {
                head.remove(at);
                rows.iter_mut().for_each(|row| drop(row.remove(at)));
            }
        }
    }
    table(&head, &rows)
}

/// How wide [`table`] makes it, in characters.
pub(crate) fn width(head: &[&str], rows: &[Cells]) -> usize {
    let columns = (0..head.len()).map(|column| column_width(head, rows, column) + GAP);
    columns.sum::<usize>().saturating_sub(GAP)
}

/// Words in lines of at most `most` characters, as far as the words allow it.
pub(crate) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn column_width(head: &[&str], rows: &[Cells], column: usize) -> usize {
    longest_cell(rows, column).max(head[column].trim_start_matches('>').chars().count())
}

fn longest_cell(rows: &[Cells], column: usize) -> usize {
    rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
}

/// Makes the cells of a column `excess` characters shorter than the longest, as far as `least` allows.
fn shorten(rows: &mut [Cells], column: usize, excess: usize, least: usize) {
    let most = longest_cell(rows, column).saturating_sub(excess).max(least);
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
        if cell.chars().count() > most {
            *cell = cell.chars().take(most - 1).chain(['…']).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_become_narrower_step_by_step() {
        let rows = [vec!["a".to_owned(), "12".to_owned(), "some words in a row".to_owned()]];
        let head = ["NAME", ">COUNT", "WORDS"];
        let steps = [Narrow::Drop("NONE"), Narrow::Cut("WORDS", 8), Narrow::Drop("COUNT"), Narrow::Cut("WORDS", 4)];
        let of = |most| table_within(most, &head, &rows, &steps);
        let whole = "NAME  COUNT  WORDS\na        12  some words in a row\n";
        assert_eq!((of(None).as_str(), of(Some(32)).as_str(), width(&head, &rows)), (whole, whole, 32));
        assert_eq!(of(Some(24)), "NAME  COUNT  WORDS\na        12  some words…\n");
        assert_eq!(of(Some(14)), "NAME  WORDS\na     some wo…\n");
        assert_eq!(of(Some(1)), "NAME  WORDS\na     som…\n");
        assert_eq!(wrapped("some words in a row", 7), ["some", "words", "in a", "row"]);
    }
}
