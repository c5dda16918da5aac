//! Programs that wait while they use `json`, `crypto`, `base64` and files.

/// As in `programs`.
pub(crate) const PROGRAMS: &[(&str, &str)] = &[
    (
    "json",
    "local t = json.decode('{\"a\":[1,2.5,null,\"x\"],\"b\":[],\"c\":{}}'); local null, encode = json.null, json.encode
         t.n = wait(); local first = tostring(t.a[3] == null) .. tostring(null == json.null); wait()
         t.a[4] = nil; t.c.y = json.array(); local all = {}
         for k, v in pairs(t) do all[#all + 1] = k .. encode(v) .. wait() end
         table.sort(all, function(a, b) return a < b end); return first .. table.concat(all, ' ')",
    ),
    (
        "crypto_and_base64",
        "local sha, hmac, encode = crypto.sha256, crypto.hmac, base64.encode; local sum = ''
         for i = 1, 3 do sum = sha(sum .. wait()) end
         local text = encode(sum, 'url'); wait()
         return text .. tostring(crypto.equal(base64.decode(text, 'url'), sum)) .. hmac('sha1', wait(), sum, 'hex')",
    ),
    (
        "open_files",
        "local f = io.open('notes', 'w+'); f:write('one\\n', wait(), '\\ntwo\\nthree\\n'); f:seek('set', 4); wait()
         local found = f:read('n', 'L'); local size = f:seek('end'); local r = io.open('./notes'); wait()
         f:write('four'); local line = r:read(); wait(); os.remove('notes'); wait(); local rest = r:read('a')
         r:close(); wait(); return found .. size .. line .. rest .. io.type(r) .. io.type(f) .. tostring(io.open('notes')) .. tostring(r)",
    ),
    (
        "lines_of_files",
        "do local f <close> = io.open('log', 'a'); for i = 1, 3 do f:write('line ', i, '\\n'); wait() end end
         local all, text = {}, ('x'):rep(5000)
         for line in io.lines('log') do all[#all + 1] = line .. wait() end
         local f = io.open('log', 'a+'); local next = f:lines(1, 'L'); all[#all + 1] = table.concat({next()}); wait()
         f:write(text); wait(); f:write(text, wait()); all[#all + 1] = table.concat({next()}); wait()
         for _, size in pairs(io.files()) do all[#all + 1] = size end
         return (table.concat(all, ' '):gsub('\\n', '/'))",
    ),
    (
        "files_without_handles",
        "local name = os.tmpname(); wait(); io.open(name, 'w'):write('kept'):close(); wait(); collectgarbage()
         os.rename(name, 'kept'); local other = os.tmpname(); wait(); local f = io.open('kept')
         local whole = f:read('a'); f:seek('set', 100000); wait(); return whole .. f:seek() .. tostring(f:read(1)) .. name .. other",
    ),
    (
        "files_with_holes",
        "local f = io.open('hole', 'w+'); f:seek('set', 300000); wait(); f:write(wait()); f:seek('set'); wait()
         local text = f:read('a'); wait(); return #text .. text:sub(-1)",
    ),
];
