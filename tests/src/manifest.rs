//! The command lines and environments of the containers in manifests.
//!
//! This is not a YAML parser. The manifests have to be written as those in `deploy/` are: a list has one item a line,
//! and a container begins with its name.

use std::collections::BTreeMap;

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Container {
    /// The name of the container, which is also the name of its program.
    pub name: String,
    /// The arguments, with `$(NAME)` for variables.
    pub arguments: Vec<String>,
    /// The environment. A variable from a field of the pod has the value `field`.
    pub environment: BTreeMap<String, String>,
}

impl Container {
    /// Returns the arguments with the values of their variables.
    ///
    /// # Errors
    /// If the environment does not have a variable of an argument.
    pub fn command_line(&self) -> Result<Vec<String>, String> {
        self.arguments.iter().map(|argument| self.substitute(argument)).collect()
    }

    fn substitute(&self, argument: &str) -> Result<String, String> {
        let mut filled = argument.to_owned();
        while let Some((before, rest)) = filled.split_once("$(") {
            let (name, after) = rest
                .split_once(')')
                .ok_or_else(|| format!("{argument}: a variable has no closing bracket"))?;
            let value = self
                .environment
                .get(name)
                .ok_or_else(|| format!("{argument}: {} has no {name}", self.name))?;
            filled = format!("{before}{value}{after}");
        }
        Ok(filled)
    }
}

/// Returns the containers of a manifest that have one of these names.
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

/// Returns the items of the list below a key.
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
    fn a_command_line_has_the_values_of_the_containers_variables() {
        let found = containers(TEXT, &["edge-hub"]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].command_line(),
            Ok(vec!["--listen=ws://127.0.0.1:1".to_owned(), "--http-endpoint=2".to_owned()])
        );
        assert_eq!(found[0].environment["NODE"], "field");
    }

    #[test]
    fn an_unknown_variable_is_an_error() {
        let found = containers(&TEXT.replace("name: ADDRESS", "name: ADRESS"), &["edge-hub"]);
        assert!(found[0].command_line().is_err_and(|wrong| wrong.contains("ADDRESS")));
    }
}
