//! What the functions of `json`, `crypto` and `base64` give, and which errors they raise.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use proptest::prelude::*;
use serde_json::json;

use self::common::{Program, says};

/// Expressions, and the text of what they give or of their error.
const JSON: &[(&str, &str)] = &[
    ("json.encode(nil)", "null"),
    ("json.encode(json.null)", "null"),
    ("json.encode({true, false, json.null})", "[true,false,null]"),
    ("json.encode(math.mininteger)", "-9223372036854775808"),
    ("json.encode(math.maxinteger)", "9223372036854775807"),
    ("json.encode(0)", "0"),
    ("json.encode(1.0)", "1.0"),
    ("json.encode(-0.0)", "-0.0"),
    ("json.encode(0.1)", "0.1"),
    ("json.encode(1 / 3)", "0.3333333333333333"),
    ("json.encode(0.1 + 0.2)", "0.30000000000000004"),
    ("json.encode(1e100)", "1e+100"),
    ("json.encode(2^53)", "9007199254740992.0"),
    ("json.encode(5e-324)", "4.94065645841247e-324"),
    ("json.encode(1 / 0)", "!cannot encode the number inf: JSON has none such"),
    ("json.encode(0 / 0)", "!JSON has none such"),
    ("json.encode(print)", "!cannot encode a function"),
    ("json.encode({{coroutine.create(print)}})", "!cannot encode a thread"),
    ("json.encode()", "!bad argument #1 to 'encode' (value expected)"),
    ("json.encode('a\\\"\\\\/\\b\\f\\n\\r\\t\\0\\x1f\\x7f€')", "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f€\""),
    ("#json.encode(('x'):rep(100000))", "100002"),
    ("#json.encode(('\\n'):rep(100000))", "200002"),
    ("json.encode({})", "{}"),
    ("json.encode(json.array())", "[]"),
    ("json.encode(json.array({}))", "[]"),
    ("json.encode({a = json.array({1})})", "{\"a\":[1]}"),
    ("json.encode({{}, {{}}})", "[{},[{}]]"),
    ("json.encode({a = {1, 2, {b = 'c'}}})", "{\"a\":[1,2,{\"b\":\"c\"}]}"),
    ("json.encode({[3] = 'c', [2] = 'b', [1] = 'a'})", "[\"a\",\"b\",\"c\"]"),
    ("json.encode({1, 2, [4] = 4, [3] = 3})", "[1,2,3,4]"),
    ("json.encode({1, 2, 3, x = 4})", "!cannot encode a table with the key 'x': others are integers, as in an array"),
    (
        "json.encode({[7] = 1})",
        "!cannot encode a table with the key 7: keys of an array are 1 to n, and some are missing",
    ),
    ("json.encode({1, nil, 3})", "!the key 3: keys of an array are 1 to n, and some are missing"),
    ("json.encode({[0] = 1})", "!the key 0: keys of an array are 1 to n"),
    ("json.encode({[-5] = 1})", "!the key -5: keys of an array are 1 to n"),
    ("json.encode({[1.5] = 1})", "!the key 1.5: others are integers"),
    ("json.encode({[true] = 1})", "!cannot encode a table with a key that is a boolean: keys of an object are strings"),
    ("json.encode(json.array({x = 1}))", "!the key 'x': json.array has marked it as an array"),
    ("json.array(setmetatable({}, {}))", "!bad argument #1 to 'array' (it has a metatable)"),
    ("json.array(1)", "!bad argument #1 to 'array' (table expected, got number)"),
    ("json.encode(json.array(json.array()))", "[]"),
    ("json.encode(setmetatable({a = 1}, {__index = error, __pairs = error, __len = error}))", "{\"a\":1}"),
    (
        "(function() local t = {}; t.t = t; return json.encode(t) end)()",
        "!cannot encode tables that are more than 128 deep, or contain themselves",
    ),
    ("(function() local t = {}; for i = 2, 128 do t = {t} end; return #json.encode(t) end)()", "256"),
    ("(function() local t = {}; for i = 2, 129 do t = {t} end; return #json.encode(t) end)()", "!more than 128 deep"),
    ("json.decode('null') == json.null", "true"),
    (
        "json.decode(' [1, 2.0, -3e2, 1E+2, 0.5e-1, true, false, null] \\n')",
        "{1,2.0,-300.0,100.0,0.05,true,false,userdata: (nil)}",
    ),
    ("json.decode('9223372036854775807')", "9223372036854775807"),
    ("json.decode('-9223372036854775808')", "-9223372036854775808"),
    ("json.decode('9223372036854775808')", "9.2233720368548e+18"),
    ("json.decode('123456789012345678901234567890') == 123456789012345678901234567890.0", "true"),
    ("json.decode('0.1') == 0.1 and json.decode('1e22') == 1e22 and json.decode('1e23') == 1e23", "true"),
    ("json.decode('-0'), math.type(json.decode('-0'))", "0 integer"),
    ("json.decode('1e-400')", "0.0"),
    ("json.decode('1e400')", "!invalid JSON at byte 1: a number that is too large"),
    ("json.decode('\"\\\\u20ac\\\\ud83d\\\\ude00\\\\u0000\\\\/\\\\b\"') == '€😀\\0/\\b'", "true"),
    ("json.decode('\"\\\\ud83d\"')", "!invalid JSON at byte 2: half of a surrogate pair"),
    ("json.decode('\"a\\\\ud83d\\\\u0041\"')", "!invalid JSON at byte 3: half of a surrogate pair"),
    ("json.decode('\"\\\\ude00\"')", "!invalid JSON at byte 2: half of a surrogate pair"),
    ("json.decode('\"\\\\u12g4\"')", "!invalid JSON at byte 6: \\u is followed by four hexadecimal digits"),
    ("json.decode('\"\\\\x\"')", "!invalid JSON at byte 3: no escape is written so"),
    ("json.decode('\"a\\nb\"')", "!invalid JSON at byte 3: a control character in a string"),
    ("json.decode('\"a\\0b\"')", "!invalid JSON at byte 3: a control character in a string"),
    ("json.decode('\"abc')", "!invalid JSON at byte 5: the text ends too early"),
    ("json.decode('\"abc\\\\')", "!invalid JSON at byte 6: the text ends too early"),
    ("json.decode('')", "!invalid JSON at byte 1: the text ends too early"),
    ("json.decode('[1,]')", "!invalid JSON at byte 4: a value is expected"),
    ("json.decode('[1 2]')", "!invalid JSON at byte 4: ',' or ']' is expected"),
    ("json.decode('[1')", "!invalid JSON at byte 3: the text ends too early"),
    ("json.decode('{\"a\":1,}')", "!invalid JSON at byte 8: a key, which is a string, is expected"),
    ("json.decode('{\"a\" 1}')", "!invalid JSON at byte 6: ':' is expected"),
    ("json.decode('{a:1}')", "!invalid JSON at byte 2: a key, which is a string, is expected"),
    ("json.decode('{\"a\":1')", "!invalid JSON at byte 7: the text ends too early"),
    ("json.decode('1 2')", "!invalid JSON at byte 3: something behind the value"),
    ("json.decode('1\\0')", "!invalid JSON at byte 2: something behind the value"),
    ("json.decode('01')", "!invalid JSON at byte 1: a number that begins with 0"),
    ("json.decode('-')", "!invalid JSON at byte 2: the text ends too early"),
    ("json.decode('1.x')", "!invalid JSON at byte 3: a number without digits"),
    ("json.decode('1e+x')", "!invalid JSON at byte 4: a number without digits"),
    ("json.decode('0x10')", "!invalid JSON at byte 2: something behind the value"),
    ("json.decode('.5')", "!invalid JSON at byte 1: a value is expected"),
    ("json.decode('+1')", "!invalid JSON at byte 1: a value is expected"),
    ("json.decode('nan')", "!invalid JSON at byte 1: a value is expected"),
    ("json.decode('truE')", "!invalid JSON at byte 1: a value is expected"),
    ("json.decode('\\xef\\xbb\\xbf1')", "!invalid JSON at byte 1: a value is expected"),
    ("json.decode({})", "!bad argument #1 to 'decode' (string expected, got table)"),
    ("json.decode('{\"a\":1,\"a\":2}').a", "2"),
    ("json.encode(json.decode('[[],{}]'))", "[[],{}]"),
    ("#json.decode('[' .. ('1,'):rep(9999) .. '1]')", "10000"),
    ("type(json.decode(('['):rep(128) .. (']'):rep(128)))", "table"),
    ("json.decode(('['):rep(129) .. (']'):rep(129))", "!JSON at byte 129 is more than 128 deep"),
    ("json.decode(('{\"a\":'):rep(129))", "!JSON at byte 641 is more than 128 deep"),
    ("json.decode('\"' .. ('\\\\n'):rep(50000) .. '\"') == ('\\n'):rep(50000)", "true"),
];

#[test]
fn json_says_what_it_should() {
    says(40, JSON);
}

fn values() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        proptest::num::f64::NORMAL.prop_map(serde_json::Value::from),
        any::<f32>().prop_filter("JSON has them", |n| n.is_finite()).prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
        "[\\x00-\\x7f\"\\\\]{0,30}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(serde_json::Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..8)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// serde_json writes a value, the program decodes and encodes it, and serde_json reads the same value.
    #[test]
    fn json_keeps_every_value(value in values()) {
        let mut program = Program::new(41);
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let back = program.call("return json.encode(json.decode(...))", &[text.as_str().into()]);
            prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&back).unwrap(), &value, "{}", back);
        }
    }

    /// Whatever the text is, it is decoded where serde_json does, and the process goes on.
    #[test]
    fn json_takes_the_same_texts(text in "[\\[\\]{}:,\"0-9eE.+\\-a\\\\u \ntruefalsn]{0,12}") {
        let mut program = Program::new(43);
        let found = program.call("return tostring(pcall(json.decode, ...))", &[text.as_str().into()]);
        // It refuses what is too large, as we do.
        let expected = serde_json::from_str::<serde_json::Value>(&text).is_ok();
        prop_assert_eq!(found, expected.to_string(), "{}", text);
    }
}

#[test]
fn json_null_is_the_same_everywhere() {
    let mut program = Program::new(42);
    let text = json!({"a": null, "b": [null]}).to_string();
    let found = program.call(
        "local t = json.decode(...); local keys = {[json.null] = 'n'}
         return keys[t.a] .. keys[t.b[1]] .. tostring(t.a == json.null) .. tostring(t.c == nil) .. tostring(json.null == nil)",
        &[text.as_str().into()],
    );
    assert_eq!(found, "nntruetruefalse");
}

/// Digests as `sha256sum` and its kin say them, HMACs of RFC 4231 and 2202.
const CRYPTO: &[(&str, &str)] = &[
    ("crypto.sha256('', 'hex')", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ("crypto.sha256('abc', 'hex')", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ("crypto.sha1('abc', 'hex')", "a9993e364706816aba3e25717850c26c9cd0d89d"),
    (
        "crypto.sha512('abc', 'hex')",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    ),
    ("#crypto.sha256('') .. ' ' .. #crypto.sha512('') .. ' ' .. #crypto.sha1('')", "32 64 20"),
    ("crypto.sha1('abc'):byte(), crypto.sha1('abc', 'raw'):byte(-1)", "169 157"),
    ("crypto.sha256(('a'):rep(1000000), 'hex')", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    (
        "crypto.hmac('sha256', ('\\x0b'):rep(20), 'Hi There', 'hex')",
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
    ),
    (
        "crypto.hmac('sha512', 'Jefe', 'what do ya want for nothing?', 'hex')",
        "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
    ),
    ("crypto.hmac('sha1', 'Jefe', 'what do ya want for nothing?', 'hex')", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
    (
        "crypto.hmac('sha256', ('\\xaa'):rep(131), 'Test Using Larger Than Block-Size Key - Hash Key First', 'hex')",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
    ("#crypto.hmac('sha256', '', '')", "32"),
    ("crypto.hmac('md5', '', '')", "!bad argument #1 to 'hmac' (invalid option 'md5')"),
    ("crypto.hmac('sha1', 'key')", "!bad argument #3 to 'hmac' (string expected, got no value)"),
    ("crypto.sha256()", "!bad argument #1 to 'sha256' (string expected, got no value)"),
    ("crypto.sha256('', 'base64')", "!bad argument #2 to 'sha256' (invalid option 'base64')"),
    (
        "crypto.equal('secret', 'secret'), crypto.equal('secret', 'secreT'), crypto.equal('a', 'ab'), crypto.equal('', '')",
        "true false false true",
    ),
    ("crypto.equal('a')", "!bad argument #2 to 'equal' (string expected, got no value)"),
    (
        "base64.encode(''), base64.encode('f'), base64.encode('fo'), base64.encode('foo'), base64.encode('foob')",
        " Zg== Zm8= Zm9v Zm9vYg==",
    ),
    ("base64.encode('\\xff\\xfe\\xfd\\xfc'), base64.encode('\\xff\\xfe\\xfd\\xfc', 'url')", "//79/A== __79_A"),
    ("base64.decode(''), base64.decode('Zg=='), base64.decode('Zm8='), base64.decode('Zm9v')", " f fo foo"),
    (
        "base64.decode('__79_A', 'url') == '\\xff\\xfe\\xfd\\xfc', base64.decode('__79_A==', 'url') == '\\xff\\xfe\\xfd\\xfc'",
        "true true",
    ),
    ("base64.decode(base64.encode(('\\0x\\xff'):rep(12345))) == ('\\0x\\xff'):rep(12345)", "true"),
    ("base64.decode('Zg')", "!invalid base64: the text does not end with the '=' that it needs"),
    ("base64.decode('Z')", "!invalid base64: the text ends within a byte"),
    ("base64.decode('Zm9v!A==')", "!invalid base64: byte 5 (!) is not of the alphabet"),
    ("base64.decode('Zm9v\\nZm9v')", "!invalid base64: byte 5 (\\n) is not of the alphabet"),
    ("base64.decode('Zh==')", "!invalid base64: byte 2 has bits that belong to no byte"),
    ("base64.decode('_w==')", "!invalid base64: byte 1 (_) is not of the alphabet"),
    ("base64.decode('/w', 'url')", "!invalid base64: byte 1 (/) is not of the alphabet"),
    ("base64.encode('', 'hex')", "!bad argument #2 to 'encode' (invalid option 'hex')"),
    ("base64.encode({})", "!bad argument #1 to 'encode' (string expected, got table)"),
];

#[test]
fn crypto_and_base64_say_what_they_should() {
    says(44, CRYPTO);
}
