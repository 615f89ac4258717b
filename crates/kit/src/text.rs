/// What is expected, in a message: "a", "a or b", "a, b or c".
///
/// ```
/// assert_eq!(cachelane_kit::or(["copy", "splice", "auto"]), "copy, splice or auto");
/// ```
pub fn or<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
