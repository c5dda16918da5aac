//! Values of Lua as JSON, and back.

use serde_json::{Map, Number, Value as Json};
use torpor_lua::Value;

/// How deep tables may lie within each other: what a host passes on.
const MOST_DEPTH: usize = 16;

/// A value for a function.
///
/// # Errors
/// In words: it is too deep.
pub(super) fn to_lua(json: &Json) -> Result<Value, String> {
    to_lua_within(json, MOST_DEPTH)
}

fn to_lua_within(json: &Json, depth: usize) -> Result<Value, String> {
    let deeper = || depth.checked_sub(1).ok_or_else(|| format!("an argument is more than {MOST_DEPTH} deep"));
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(is) => Value::Boolean(*is),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::Integer(integer),
            None => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(values) => {
            let depth = deeper()?;
            let pair = |(place, value)| Ok((Value::Integer(place), to_lua_within(value, depth)?));
            let pairs: Result<Vec<_>, String> = (1..).zip(values).map(pair).collect();
            Value::Table(without_nil(pairs?))
        }
        Json::Object(fields) => {
            let depth = deeper()?;
            let pair = |(name, value): (&String, _)| Ok((name.as_str().into(), to_lua_within(value, depth)?));
            let pairs: Result<Vec<_>, String> = fields.iter().map(pair).collect();
            Value::Table(without_nil(pairs?))
        }
    })
}

fn without_nil(mut pairs: Vec<(Value, Value)>) -> Vec<(Value, Value)> {
    pairs.retain(|(_, value)| *value != Value::Nil);
    pairs
}

/// What a function has returned. A table with the keys 1 to n and no others is an array.
pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::Nil | Value::Handle(_) | Value::Other(_) => Json::Null,
        Value::Boolean(is) => Json::Bool(*is),
        Value::Integer(integer) => Json::from(*integer),
        // Infinite ones are null.
        Value::Number(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Value::String(bytes) => Json::String(text(bytes)),
        Value::Table(pairs) => array(pairs).unwrap_or_else(|| {
            let fields = pairs.iter().map(|(key, value)| (name(key), to_json(value)));
            Json::Object(fields.collect::<Map<_, _>>())
        }),
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name(key: &Value) -> String {
    match key {
        Value::String(bytes) => text(bytes),
        other => to_json(other).to_string(),
    }
}

/// Where the keys are 1 to n, in any order.
fn array(pairs: &[(Value, Value)]) -> Option<Json> {
    let mut places: Vec<Option<&Value>> = vec![None; pairs.len()];
    for (key, value) in pairs {
        let Value::Integer(place) = key else { return None };
        *places.get_mut(usize::try_from(*place).ok()?.checked_sub(1)?)? = Some(value);
    }
    let values: Option<Vec<Json>> = places.into_iter().map(|value| value.map(to_json)).collect();
    values.filter(|values| !values.is_empty()).map(Json::Array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_back() {
        for text in [r#"[true,1,2.5,"é",[1,[2]],{"a":{"b":[3]}}]"#, r#"{"1":2,"x":-1}"#, "7", "{}"] {
            let json: Json = serde_json::from_str(text).unwrap();
            assert_eq!(to_json(&to_lua(&json).unwrap()), json, "{text}");
        }
        assert_eq!(to_json(&to_lua(&serde_json::json!([1, null, 3])).unwrap()), serde_json::json!({"1": 1, "3": 3}));
        let deep = (0..17).fold(Json::Null, |inner, _| Json::Array(vec![inner]));
        assert!(to_lua(&deep).is_err());
        assert_eq!(to_json(&Value::Table(vec![(Value::Integer(2), Value::Nil)])), serde_json::json!({"2": null}));
        assert_eq!(to_json(&Value::Number(f64::INFINITY)), Json::Null);
    }
}
