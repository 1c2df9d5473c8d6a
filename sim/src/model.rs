//! What one client's own tree must look like: a naive oracle.
//!
//! Each client works alone in its directories, so the model is exact, but for
//! operations whose outcome the client never learnt: those leave two states,
//! until the next look at the path decides.

use std::collections::BTreeMap;

/// What a path may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Absent,
    /// A file with these bytes.
    File(Vec<u8>),
}

/// Files by name, each with the states it may be in (the first is the likelier).
#[derive(Clone, Debug, Default)]
pub struct Model {
    files: BTreeMap<String, Vec<Entry>>,
}

impl Model {
    /// States that `name` may be in.
    pub fn may_be(&self, name: &str) -> Vec<Entry> {
        self.files.get(name).cloned().unwrap_or_else(|| vec![Entry::Absent])
    }

    /// The state of `name`, if there is only one.
    pub fn is(&self, name: &str) -> Option<Entry> {
        let states = self.may_be(name);
        (states.len() == 1).then(|| states[0].clone())
    }

    /// An acknowledged change.
    pub fn set(&mut self, name: &str, entry: Entry) {
        self.files.insert(name.to_owned(), vec![entry]);
    }

    /// A change that was not answered: it may have happened, or not.
    pub fn set_maybe(&mut self, name: &str, entry: Entry) {
        let mut states = self.may_be(name);
        if !states.contains(&entry) {
            states.push(entry);
        }
        self.files.insert(name.to_owned(), states);
    }

    /// Checks what was seen of `name`, and remembers it as the truth from now on.
    ///
    /// Errors: a sentence that says what was expected.
    pub fn observe(&mut self, name: &str, seen: &Entry) -> Result<(), String> {
        let states = self.may_be(name);
        if states.contains(seen) {
            self.set(name, seen.clone());
            return Ok(());
        }
        Err(format!(
            "{name}: saw {}, but it may only be {}",
            show(seen),
            states.iter().map(show).collect::<Vec<_>>().join(" or ")
        ))
    }

    /// All names that ever were.
    pub fn names(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }
}

fn show(entry: &Entry) -> String {
    match entry {
        Entry::Absent => "absent".to_owned(),
        Entry::File(data) => {
            format!("{} bytes starting {:?}", data.len(), String::from_utf8_lossy(&data[..data.len().min(24)]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_change_leaves_both_states_until_someone_looks() {
        let (mut model, file) = (Model::default(), Entry::File(b"x".to_vec()));
        model.set_maybe("a", file.clone());
        assert_eq!((model.is("a"), model.may_be("a").len()), (None, 2));
        model.observe("a", &file).unwrap();
        assert_eq!(model.is("a"), Some(file.clone()));
        model.set("a", Entry::Absent);
        assert!(model.observe("a", &file).unwrap_err().contains("absent"));
    }
}
