//! The guide's diagrams, drawn from their pikchr sources.

use std::fs;
use std::path::Path;

use pikchr::{Pikchr, PikchrFlags};

use super::{CodegenError, Source};

/// The font and the colors of a diagram that is shown outside of the guide's site; the site sets its own.
const STYLE: &str = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>";
/// What pikchr writes for black, and what it becomes: the color of the text around the diagram.
const BLACK: &str = "rgb(0,0,0)";
const AMBIENT: &str = "currentColor";

/// Draws every source of a folder, in the order of the names.
pub(super) fn generate(folder: &Path) -> Result<Vec<Source>, CodegenError> {
    let entries = fs::read_dir(folder).map_err(|cause| CodegenError::read(folder, cause))?;
    let mut diagrams = Vec::new();
    for entry in entries {
        let path = entry.map_err(|cause| CodegenError::read(folder, cause))?.path();
        let source = fs::read_to_string(&path).map_err(|cause| CodegenError::read(&path, cause))?;
        let text =
            draw(&source).map_err(|message| CodegenError::Undrawable { path: path.clone(), message })?;
        let name = path.with_extension("svg");
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        diagrams.push(Source { name, text });
    }
    diagrams.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(diagrams)
}

/// Draws a source whose first line is a comment with the title.
fn draw(source: &str) -> Result<String, String> {
    let title = source.strip_prefix("# ").and_then(|rest| rest.lines().next());
    let title = title.ok_or("the first line is not `# TITLE`")?;
    let drawn = Pikchr::render(source, None, PikchrFlags::default())?;
    let drawn = drawn.rendered();
    let (width, height) = size(drawn).ok_or("pikchr states no size")?;
    let start = drawn.find('\n').ok_or("pikchr draws nothing")?;
    let text: String = drawn[start..].trim_end().lines().map(|line| ambient(line) + "\n").collect();
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"15\">\n\
         <title>{title}</title>\n{STYLE}{text}"
    ))
}

/// Returns width and height of the drawing, without fractions.
fn size(drawn: &str) -> Option<(u32, u32)> {
    let (_, rest) = drawn.split_once("viewBox=\"0 0 ")?;
    let (width, rest) = rest.split_once(' ')?;
    let (height, _) = rest.split_once('"')?;
    let whole = |number: &str| number.split('.').next()?.parse::<u32>().ok()?.checked_add(1);
    Some((whole(width)?, whole(height)?))
}

/// Replaces black, and every color of text, by the color around the diagram. A color of lines is readable on light and
/// on dark pages; thin text in it is not.
fn ambient(line: &str) -> String {
    match (line.strip_prefix("<text "), line.find("fill=\"rgb("), line.find(")\"")) {
        (Some(_), Some(from), Some(to)) => {
            format!("{}fill=\"{AMBIENT}{}", &line[..from], &line[to + 1..])
        }
        _ => line.replace(BLACK, AMBIENT),
    }
}
