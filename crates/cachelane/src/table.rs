//! Tables for people: aligned columns, no frames.

/// Lays out `rows` under `head`. The last column is not padded, so it may be long.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
        let mut line = padded.collect::<String>().trim_end().to_owned();
        line.push('\n');
        line
    };
    let body = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(head)).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["é".into(), "1".into()], ["long".into(), "22".into()]];
        assert_eq!(table(["a", "b"], &rows), "a     b\né     1\nlong  22\n");
    }
}
