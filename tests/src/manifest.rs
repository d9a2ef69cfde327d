//! The containers of manifests, as far as their command lines go.
//!
//! Read line by line, for the manner in which `deploy/` is written: a list has an item a line, and a container begins with
//! its name.

use std::collections::BTreeMap;

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Container {
    /// Its name, which is that of its program.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its environment. A variable from a field of the pod has the value `field`.
    pub environment: BTreeMap<String, String>,
}

impl Container {
    /// The arguments with the variables filled in.
    ///
    /// # Errors
    /// If a variable is named that the environment does not have.
    pub fn command_line(&self) -> Result<Vec<String>, String> {
        self.arguments.iter().map(|argument| self.filled_in(argument)).collect()
    }

    fn filled_in(&self, argument: &str) -> Result<String, String> {
        let mut filled = argument.to_owned();
        while let Some((before, rest)) = filled.split_once("$(") {
            let (name, after) =
                rest.split_once(')').ok_or_else(|| format!("{argument}: no end of a variable"))?;
            let value = self
                .environment
                .get(name)
                .ok_or_else(|| format!("{argument}: {} has no {name}", self.name))?;
            filled = format!("{before}{value}{after}");
        }
        Ok(filled)
    }
}

/// The containers in a text that have one of these names.
#[must_use]
pub fn containers(text: &str, names: &[&str]) -> Vec<Container> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let mut containers = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = line.trim_start().strip_prefix("- name: ").filter(|name| names.contains(name))
        else {
            continue;
        };
        let indent = indent_of(line);
        let body: Vec<&str> =
            lines[at + 1..].iter().copied().take_while(|line| indent_of(line) > indent).collect();
        if body.iter().any(|line| line.trim() == "$patch: delete") && body.len() == 1 {
            continue;
        }
        containers.push(Container {
            name: name.to_owned(),
            arguments: items(&body, "args:")
                .into_iter()
                .map(|item| item.trim_matches('"').to_owned())
                .collect(),
            environment: environment(&body),
        });
    }
    containers
}

fn indent_of(line: &str) -> usize {
    if line.trim().is_empty() { usize::MAX } else { line.len() - line.trim_start().len() }
}

/// The items of the list behind a key.
fn items<'a>(body: &[&'a str], key: &str) -> Vec<&'a str> {
    let list = body.iter().skip_while(|line| line.trim() != key).skip(1);
    list.map_while(|line| line.trim_start().strip_prefix("- ")).collect()
}

fn environment(body: &[&str]) -> BTreeMap<String, String> {
    let Some(start) = body.iter().position(|line| line.trim_start().starts_with("env:")) else {
        return BTreeMap::new();
    };
    let indent = indent_of(body[start]);
    let mut variables = BTreeMap::new();
    let mut name = String::new();
    for line in body[start + 1..].iter().take_while(|line| indent_of(line) > indent) {
        let line = line.trim();
        if let Some(next) = line.strip_prefix("- name: ") {
            next.clone_into(&mut name);
        } else if let Some(value) = line.strip_prefix("value: ") {
            variables.insert(name.clone(), value.to_owned());
        } else if line == "valueFrom:" {
            variables.insert(name.clone(), "field".to_owned());
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
      containers:
        - name: edge-hub
          # A comment.
          args:
            # Another.
            - --listen=ws://$(ADDRESS):1
            - --http-endpoint=2
          env:
            - name: ADDRESS
              value: 127.0.0.1
            - name: NODE
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
          ports:
            - name: ws
        - name: other
          args:
            - --no
";

    #[test]
    fn a_container_has_its_own_arguments_with_its_variables() {
        let found = containers(TEXT, &["edge-hub"]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].command_line(),
            Ok(vec!["--listen=ws://127.0.0.1:1".to_owned(), "--http-endpoint=2".to_owned()])
        );
        assert_eq!(found[0].environment["NODE"], "field");
    }

    #[test]
    fn a_variable_that_is_not_there_is_an_error() {
        let found = containers(&TEXT.replace("name: ADDRESS", "name: ADRESS"), &["edge-hub"]);
        assert!(found[0].command_line().is_err_and(|wrong| wrong.contains("ADDRESS")));
    }
}
