//! What the README shows of the services is there, and its JSON fits.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet};
use serde_json::Value;

/// Messages by their full names, and the request of each method.
#[derive(Default)]
struct Known {
    messages: BTreeMap<String, DescriptorProto>,
    methods: BTreeMap<String, String>,
}

impl Known {
    fn new() -> Self {
        let mut known = Self::default();
        for file in FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap().file {
            let package = file.package().to_owned();
            for message in file.message_type {
                known.messages.insert(format!(".{package}.{}", message.name()), message);
            }
            for service in file.service {
                for method in &service.method {
                    let name = format!("{package}.{}/{}", service.name(), method.name());
                    known.methods.insert(name, method.input_type().to_owned());
                }
            }
        }
        known
    }

    fn check(&self, message: &str, json: &Value) {
        let found = &self.messages[message];
        for (key, value) in json.as_object().unwrap() {
            let field = found.field.iter().find(|field| field.json_name() == key || field.name() == key);
            let field = field.unwrap_or_else(|| panic!("{message} has no field {key}"));
            if value.is_object() {
                self.check(field.type_name(), value);
            }
        }
    }
}

#[test]
fn each_grpcurl_line_names_a_method_and_its_fields() {
    let (known, readme) = (Known::new(), include_str!("../../README.md"));
    let mut seen = 0;
    for line in readme.lines() {
        let Some((_, call)) = line.split_once("grpcurl ") else { continue };
        let Some(method) = call.split([' ', '`']).find(|word| word.contains('/') && word.starts_with("pando.")) else {
            assert!(call.ends_with(" list"), "{line}");
            continue;
        };
        let request = known.methods.get(method).unwrap_or_else(|| panic!("there is no {method}"));
        if let Some((_, data)) = call.split_once("-d '") {
            let (json, _) = data.split_once('\'').unwrap();
            known.check(request, &serde_json::from_str(json).unwrap());
        }
        seen += 1;
    }
    assert!(seen > 6, "{seen}");
}
