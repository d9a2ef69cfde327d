//! The page for people: plain HTML without a script.

use std::fmt::Write;

use super::Status;

/// Renders the page as HTML.
pub(super) fn render(status: &dyn Status) -> String {
    let name = escape(status.name());
    let ready = match status.ready() {
        Ok(()) => "ready".to_owned(),
        Err(reason) => format!("not ready: {}", escape(&reason)),
    };
    let rows = status.facts().iter().fold(String::new(), |mut rows, fact| {
        // Writing to a string cannot fail.
        let _ = writeln!(rows, "<tr><th>{}</th><td>{}</td></tr>", escape(&fact.name), escape(&fact.value));
        rows
    });
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <style>body{{font-family:sans-serif;margin:2em}}th{{text-align:left;padding-right:2em}}td,th{{vertical-align:top}}</style>\n\
         </head><body><h1>{name}</h1><p>{ready}</p>\n<table>\n{rows}</table>\n\
         <p><a href=\"/livez\">livez</a> <a href=\"/readyz\">readyz</a> <a href=\"/metrics\">metrics</a></p></body></html>\n"
    )
}

fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Fact;

    struct Hostile;

    impl Status for Hostile {
        fn name(&self) -> &'static str {
            "edge-test"
        }

        fn ready(&self) -> Result<(), String> {
            Err("<b>".to_owned())
        }

        fn facts(&self) -> Vec<Fact> {
            vec![Fact::new("peer", "<script>\"'&")]
        }

        fn publish_metrics(&self) {}
    }

    #[test]
    fn what_a_peer_is_called_cannot_become_markup() {
        let page = render(&Hostile);
        assert!(page.contains("&lt;script&gt;&quot;&#39;&amp;") && page.contains("not ready: &lt;b&gt;"));
        assert!(!page.contains("<script"));
    }
}
