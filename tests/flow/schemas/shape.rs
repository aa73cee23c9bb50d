//! The shape of JSON documents, and its form as a JSON Schema.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Of a property that no output of the tests has: it needs hardware, or an event.
const ELSEWHERE: &str = "x-elsewhere";

/// What was seen in one place of some documents, or what a schema allows there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// JSON's types.
    kinds: BTreeSet<String>,
    fields: BTreeMap<String, Field>,
    items: Option<Box<Shape>>,
    /// Of an object whose keys are no names of fields.
    values: Option<Box<Shape>>,
    about: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    shape: Shape,
    /// Whether each object has it.
    always: bool,
    elsewhere: bool,
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Shape {
    /// The shape of documents; objects at a path that `is_map` have keys of their own.
    pub(super) fn of(documents: &[Value], is_map: &impl Fn(&str) -> bool) -> Self {
        let all: Vec<&Value> = documents.iter().collect();
        Self::of_values(&all, "", is_map)
    }

    fn of_values(values: &[&Value], path: &str, is_map: &impl Fn(&str) -> bool) -> Self {
        let kinds = values.iter().map(|value| kind(value).to_owned()).collect();
        let items: Vec<&Value> =
            values.iter().filter_map(|value| value.as_array()).flatten().collect();
        let below = |items: &[&Value], name: &str| {
            let below = || Self::of_values(items, &format!("{path}/{name}"), is_map);
            (!items.is_empty()).then(|| Box::new(below()))
        };
        let objects: Vec<_> = values.iter().filter_map(|value| value.as_object()).collect();
        let mut new = Self { kinds, items: below(&items, "*"), ..Self::default() };
        if is_map(path) {
            let all: Vec<&Value> = objects.iter().flat_map(|object| object.values()).collect();
            new.values = below(&all, "*");
            return new;
        }
        let names: BTreeSet<&String> = objects.iter().flat_map(|object| object.keys()).collect();
        for name in names {
            let all: Vec<&Value> = objects.iter().filter_map(|object| object.get(name)).collect();
            let shape = Self::of_values(&all, &format!("{path}/{name}"), is_map);
            let field = Field { shape, always: all.len() == objects.len(), elsewhere: false };
            new.fields.insert(name.clone(), field);
        }
        new
    }

    /// Reads a schema.
    pub(super) fn read(schema: &Value) -> Self {
        let kinds = match &schema["type"] {
            Value::String(one) => BTreeSet::from([one.clone()]),
            Value::Array(all) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => BTreeSet::new(),
        };
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = schema["properties"].as_object().into_iter().flatten();
        let fields = fields.map(|(name, schema)| {
            let always = required.contains(&name.as_str());
            let elsewhere = schema[ELSEWHERE] == true;
            (name.clone(), Field { shape: Self::read(schema), always, elsewhere })
        });
        let below = |key: &str| {
            schema
                .get(key)
                .filter(|schema| schema.is_object())
                .map(|schema| Box::new(Self::read(schema)))
        };
        Self {
            kinds,
            fields: fields.collect(),
            items: below("items"),
            values: below("additionalProperties"),
            about: schema["description"].as_str().map(str::to_owned),
        }
    }

    /// Writes it as a schema.
    pub(super) fn write(&self) -> Map<String, Value> {
        let mut schema = Map::new();
        schema.extend(self.about.iter().map(|about| ("description".into(), json!(about))));
        let kinds: Vec<_> = self.kinds.iter().collect();
        let kinds = if let [one] = &kinds[..] { json!(one) } else { json!(kinds) };
        schema.insert("type".into(), kinds);
        if let Some(items) = &self.items {
            schema.insert("items".into(), items.write().into());
        }
        if let Some(values) = &self.values {
            schema.insert("additionalProperties".into(), values.write().into());
        }
        if !self.fields.is_empty() {
            let required: Vec<_> =
                self.fields.iter().filter(|(_, it)| it.always).map(|(name, _)| name).collect();
            schema.insert("required".into(), json!(required));
            let fields = self.fields.iter().map(|(name, field)| {
                let mut below = field.shape.write();
                if field.elsewhere {
                    below.insert(ELSEWHERE.into(), true.into());
                }
                (name.clone(), Value::Object(below))
            });
            schema.insert("properties".into(), fields.collect::<Map<_, _>>().into());
        }
        schema
    }

    /// Adds to what was seen the part of an earlier schema that the outputs do not speak of.
    pub(super) fn keep(&mut self, schema: &Self) {
        self.kinds.extend(schema.kinds.iter().cloned());
        if self.kinds.contains("number") {
            self.kinds.remove("integer");
        }
        self.about.clone_from(&schema.about);
        let pairs = [(&mut self.items, &schema.items), (&mut self.values, &schema.values)];
        for (seen, known) in pairs {
            match (seen.as_mut(), known) {
                (Some(seen), Some(known)) => seen.keep(known),
                (None, Some(known)) => *seen = Some(known.clone()),
                (_, None) => {}
            }
        }
        let none_seen = self.fields.is_empty();
        for (name, known) in &schema.fields {
            match self.fields.get_mut(name) {
                Some(seen) => {
                    seen.shape.keep(&known.shape);
                    seen.always &= known.always;
                }
                None if none_seen || known.elsewhere => {
                    self.fields.insert(name.clone(), known.clone());
                }
                None => {}
            }
        }
    }

    /// Where a schema and what was seen differ.
    pub(super) fn differences(&self, schema: &Self, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        let allows = |kind: &String| {
            schema.kinds.contains(kind) || kind == "integer" && schema.kinds.contains("number")
        };
        let other = self.kinds.iter().filter(|kind| !allows(kind));
        found.extend(other.map(|kind| format!("{path}: the schema allows no {kind}")));
        for (seen, known) in [(&self.items, &schema.items), (&self.values, &schema.values)] {
            match (seen, known) {
                (Some(seen), Some(known)) => {
                    found.extend(seen.differences(known, &format!("{path}/*")));
                }
                (Some(_), None) => {
                    found.push(format!("{path}: the schema has nothing of its items"))
                }
                (None, _) => {}
            }
        }
        for (name, seen) in &self.fields {
            let path = format!("{path}/{name}");
            match schema.fields.get(name) {
                None => found.push(format!("{path}: the schema lacks it")),
                Some(known) if known.always && !seen.always => {
                    found.push(format!(
                        "{path}: not each output has it, and the schema requires it"
                    ));
                }
                Some(known) => found.extend(seen.shape.differences(&known.shape, &path)),
            }
        }
        if !self.fields.is_empty() {
            let gone = schema
                .fields
                .iter()
                .filter(|(name, known)| !known.elsewhere && !self.fields.contains_key(*name));
            found.extend(gone.map(|(name, _)| format!("{path}/{name}: no output has it")));
        }
        found
    }

    /// Where a schema leaves open what there is.
    pub(super) fn open_ends(&self, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        if self.kinds.iter().all(|kind| kind == "null") {
            found.push(format!("{path}: of what type is it where it is not null?"));
        }
        if self.kinds.contains("array") && self.items.is_none() {
            found.push(format!("{path}: of what type are its items?"));
        }
        if self.kinds.contains("object") && self.fields.is_empty() && self.values.is_none() {
            found.push(format!("{path}: what has it?"));
        }
        let below = [&self.items, &self.values].into_iter().flatten();
        found.extend(below.flat_map(|shape| shape.open_ends(&format!("{path}/*"))));
        for (name, field) in &self.fields {
            found.extend(field.shape.open_ends(&format!("{path}/{name}")));
        }
        found
    }
}

#[test]
fn a_difference_is_found_in_both_directions() {
    let schema = json!({
        "type": "object", "required": ["a", "b"],
        "properties": {
            "a": {"type": "integer"}, "b": {"type": ["null", "string"]},
            "c": {"type": "array", "items": {"type": "number"}},
            "d": {"type": "integer", "x-elsewhere": true},
        },
    });
    let schema = Shape::read(&schema);
    let found = |documents: &[Value]| Shape::of(documents, &|_| false).differences(&schema, "");
    assert_eq!(found(&[json!({"a": 1, "b": null, "c": [1, 2.5]})]), Vec::<String>::new());
    let wrong = [json!({"a": 1.5, "b": 2, "e": 3}), json!({"a": 1, "c": ["x"]})];
    let found = found(&wrong);
    let words = [
        "/a: the schema allows no number",
        "/b: not each output has it, and the schema requires it",
        "/c/*: the schema allows no string",
        "/e: the schema lacks it",
    ];
    assert_eq!(found, words);
    let lost = Shape::of(&[json!({"a": 1, "b": ""})], &|_| false).differences(&schema, "");
    assert_eq!(lost, ["/c: no output has it"]);
    let open = Shape::read(&json!({"type": "object", "properties": {"a": {"type": "null"}}}));
    assert_eq!(open.open_ends(""), ["/a: of what type is it where it is not null?"]);
}

/// What an earlier schema has beyond the outputs stays, and what they lack goes.
#[test]
fn a_schema_that_is_written_again_keeps_what_was_added_by_hand() {
    let below = json!({"x": {"type": "string"}});
    let schema = json!({
        "type": "object", "required": ["a"],
        "properties": {
            "a": {"type": ["null", "object"], "required": ["x"], "properties": below},
            "gone": {"type": "integer"},
            "rare": {"type": "integer", "x-elsewhere": true},
        },
    });
    let mut seen = Shape::of(&[json!({"a": null, "new": 1})], &|_| false);
    seen.keep(&Shape::read(&schema));
    let written = Value::Object(seen.write());
    assert_eq!(written["properties"]["a"], schema["properties"]["a"]);
    assert_eq!(written["properties"]["rare"], schema["properties"]["rare"]);
    assert_eq!(written["required"], json!(["a", "new"]));
    assert!(written["properties"]["gone"].is_null());
    assert_eq!(Shape::read(&written), seen);
}
