//! Programs that wait while they use `json`, `crypto`, `base64` and files.

/// As in `programs`.
pub(crate) const PROGRAMS: &[(&str, &str)] = &[(
    "json",
    "local t = json.decode('{\"a\":[1,2.5,null,\"x\"],\"b\":[],\"c\":{}}'); local null, encode = json.null, json.encode
         t.n = wait(); local first = tostring(t.a[3] == null) .. tostring(null == json.null); wait()
         t.a[4] = nil; t.c.y = json.array(); local all = {}
         for k, v in pairs(t) do all[#all + 1] = k .. encode(v) .. wait() end
         table.sort(all, function(a, b) return a < b end); return first .. table.concat(all, ' ')",
)];
