//! Programs that wait in every place where a program can wait: each returns a text that says what happened.

/// What it waits for is answered by `1`, `2`, and so on.
pub(crate) const PROGRAMS: &[(&str, &str)] = &[
    ("local_variables", "local a, b = {1, 2}, 'x'; a[3] = wait(); b = b .. wait(); return table.concat(a, ',') .. b"),
    (
        "upvalues",
        "local n = 10; local function add(m) n = n + m end
         add(wait()); local also = function() return n end; add(wait()); return also()",
    ),
    ("pcall", "local ok, v = pcall(function() return wait() + wait() end); return tostring(ok) .. v"),
    (
        "error_behind_a_wait",
        "local ok, e = pcall(function() local n = wait(); error({n = n}) end); wait(); return tostring(ok) .. e.n",
    ),
    (
        "xpcall",
        "local ok, e = xpcall(function(m) wait(); error('bad' .. m .. wait(), 0) end, function(e) return e .. '!' end, 7)
         return tostring(ok) .. e",
    ),
    (
        "nested_pcall",
        "return select(2, pcall(pcall, pcall, function() wait(); return select(2, pcall(error, wait())) end)) and 'ok'",
    ),
    (
        "metamethods_of_operators",
        "local M = {}
         for _, name in ipairs{'add', 'sub', 'mul', 'div', 'mod', 'pow', 'idiv', 'band', 'bor', 'bxor', 'shl', 'shr', 'concat'} do
           M['__' .. name] = function(a, b) return name .. wait() end
         end
         M.__unm = function() return 'unm' .. wait() end
         M.__bnot = function() return 'bnot' .. wait() end
         M.__len = function() return 'len' .. wait() end
         local t = setmetatable({}, M)
         return table.concat({t + 1, t - 1, t * 1, t / 1, t % 1, t ^ 1, t // 1, t & 1, t | 1, t ~ 1, t << 1, t >> 1, t .. 'x', 'y' .. t,
                              -t, ~t, #t}, ' ')",
    ),
    (
        "metamethods_of_comparisons",
        "local M = {__eq = function() return wait() == 1 end, __lt = function() return wait() == 2 end,
                    __le = function() return wait() == 4 end}
         local a, b = setmetatable({}, M), setmetatable({}, M)
         return tostring(a == b) .. tostring(a < b) .. tostring(a > b) .. tostring(a <= b) .. tostring(a ~= b)",
    ),
    (
        "metamethods_of_access",
        "local t = setmetatable({}, {__index = function(_, k) return k .. wait() end,
                                    __newindex = function(t, k, v) rawset(t, k, v + wait()) end,
                                    __call = function(_, x) return x * wait() end})
         t.a = 10; return t.a .. t.b .. t(100) .. t.c",
    ),
    (
        "to_be_closed",
        "local log = {}
         do
           local a <close> = setmetatable({}, {__close = function() log[#log + 1] = 'a' .. wait() end})
           local b <close> = setmetatable({}, {__close = function(_, e) log[#log + 1] = 'b' .. wait() end})
           wait()
         end
         return table.concat(log, ',') .. wait()",
    ),
    (
        "to_be_closed_by_an_error",
        "local log = {}
         local ok, e = pcall(function()
           local a <close> = setmetatable({}, {__close = function(_, e) log[#log + 1] = e .. wait() end})
           wait(); error('x', 0)
         end)
         return tostring(ok) .. e .. log[1]",
    ),
    (
        "iterators",
        "local function upto(n) return function(_, i) wait(); if i < n then return i + 1 end end, nil, 0 end
         local sum = 0; for i in upto(3) do sum = sum + i * wait() end; return sum",
    ),
    (
        "pairs_with_a_metamethod",
        "local t = setmetatable({}, {__pairs = function(t) wait(); return next, {a = wait()}, nil end})
         local found = ''; for k, v in pairs(t) do found = found .. k .. v end; return found",
    ),
    (
        "loops_over_tables",
        "local keys = {}; for i = 1, 20 do keys['k' .. i] = i end
         local sum, n = 0, 0; for k, v in pairs(keys) do n = n + 1; if n % 7 == 0 then wait() end; sum = sum + v end
         for i, v in ipairs{5, 6, 7} do sum = sum + v * wait() end; return sum .. ' ' .. n",
    ),
    ("gmatch", "local all = {}; for word in ('one two three'):gmatch('%a+') do all[#all + 1] = word .. wait() end; return table.concat(all, ' ')"),
    (
        "coroutines",
        "local co = coroutine.create(function(a) local b = coroutine.yield(a + wait()); wait(); return b * 2 end)
         local _, x = coroutine.resume(co, 10); wait(); local _, y = coroutine.resume(co, x)
         return x .. ' ' .. y .. ' ' .. coroutine.status(co)",
    ),
    (
        "coroutines_in_coroutines",
        "local function level(n)
           return coroutine.wrap(function()
             if n == 0 then coroutine.yield('deep' .. wait()); return 'end' .. wait() end
             local inner = level(n - 1)
             coroutine.yield(inner() .. n); wait(); return inner() .. n
           end)
         end
         local f = level(20); local a = f(); wait(); return a .. f()",
    ),
    (
        "errors_in_coroutines",
        "local co = coroutine.create(function() wait(); error('inner' .. wait(), 0) end)
         local ok, e = coroutine.resume(co); local again = select(2, coroutine.resume(co)); wait()
         local w = coroutine.wrap(function() wait(); error('wrapped', 0) end)
         return tostring(ok) .. e .. again .. tostring(select(2, pcall(w))):gsub('^.*: ', '')",
    ),
    (
        "states_of_coroutines",
        "local out = {}
         local outer
         outer = coroutine.create(function()
           local inner = coroutine.create(function()
             out[#out + 1] = coroutine.status(outer); out[#out + 1] = tostring(coroutine.isyieldable())
             out[#out + 1] = select(2, coroutine.resume(outer)); wait()
             out[#out + 1] = tostring(select(2, pcall(coroutine.close, outer)))
             coroutine.yield(); out[#out + 1] = tostring(select(2, coroutine.running()))
           end)
           coroutine.resume(inner); out[#out + 1] = coroutine.status(inner); wait(); coroutine.resume(inner)
           out[#out + 1] = coroutine.status(inner)
         end)
         out[#out + 1] = coroutine.status(outer); coroutine.resume(outer); out[#out + 1] = coroutine.status(outer)
         out[#out + 1] = tostring(select(2, coroutine.running())) .. tostring(coroutine.isyieldable())
         out[#out + 1] = tostring(select(2, pcall(coroutine.yield)))
         return table.concat(out, ';')",
    ),
    (
        "closed_coroutines",
        "local log = ''
         local co = coroutine.create(function() local x <close> = setmetatable({}, {__close = function() log = log .. 'closed' end})
           coroutine.yield(wait()) end)
         coroutine.resume(co); wait(); return tostring(coroutine.close(co)) .. log .. coroutine.status(co)",
    ),
    (
        "a_generator_as_an_iterator",
        "local all = {}
         for a, b in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i, wait()) end end) do all[#all + 1] = a .. '=' .. b end
         return table.concat(all, ' ')",
    ),
    ("recursion", "local function sum(n) if n == 0 then return wait() end return n + sum(n - 1) end; return sum(150) + wait()"),
    ("tail_calls", "local function loop(n, x) if n == 0 then return x end return loop(n - 1, x + wait()) end; return loop(5, 0)"),
    ("varargs", "local function f(...) local n = select('#', ...); wait(); return n, ... end; return table.concat({f(1, 2, wait(), 'x')}, ',')"),
    ("loaded_text", "local f = load('local a = ...; return a + wait() + x', 'chunk', 'b', {wait = wait, x = 5}); wait(); return f(100)"),
    (
        "strings_and_numbers",
        "local s = ('x'):rep(5000) .. wait(); local t = {[1.5] = 'f', [2^53] = 'big', [true] = 'b', [-1] = 'neg', [s] = 'long'}
         wait(); return t[1.5] .. t[2^53] .. t[true] .. t[-1] .. t[s] .. #s .. string.format('%g %q', 0.1, 'a\\nb')",
    ),
    (
        "many_objects",
        "local t = {}; for i = 1, 3000 do t[i] = {i = i, s = 'str' .. i, f = function() return i end} end; wait()
         for i = 1, 3000, 2 do t[i] = nil end; collectgarbage(); wait()
         local sum = 0; for i = 2, 3000, 2 do sum = sum + t[i].f() + #t[i].s end; return sum",
    ),
    (
        "weak_tables_and_finalizers",
        "local log, weak = {}, setmetatable({}, {__mode = 'k'})
         do local x = setmetatable({}, {__gc = function() log[#log + 1] = 'gc' end}); weak[x] = 1; wait() end
         wait(); collectgarbage(); collectgarbage(); return #log .. tostring(next(weak))",
    ),
    ("goto", "local i = 0; ::again:: i = i + wait(); if i < 10 then goto again end; return i"),
    ("methods", "local C = {}; C.__index = C; function C:add(n) self.n = self.n + n + wait(); return self end
      local o = setmetatable({n = 0}, C); return o:add(1):add(2):add(3).n"),
    ("random_numbers", "local a = math.random(1000000); wait(); local b = math.random(1000000); wait(); return a .. ' ' .. b .. ' ' .. math.random(1000000)"),
    (
        "places_that_cannot_wait",
        "local out = {}
         local function try(f, ...) out[#out + 1] = tostring(select(2, pcall(f, ...))) end
         try(table.sort, {3, 2, 1}, function(a, b) wait(); return a < b end)
         try(string.gsub, 'abc', '%a', function() wait() end)
         try(tostring, setmetatable({}, {__tostring = function() wait(); return 'x' end}))
         try(table.sort, {3, 2, 1}, function(a, b) return coroutine.wrap(function() wait(); return a < b end)() end)
         wait(); return table.concat(out, ';')",
    ),
    (
        "coroutines_where_none_can_wait",
        "local t = {3, 1, 2}; local less = coroutine.wrap(function(a, b) while true do a, b = coroutine.yield(a < b) end end)
         table.sort(t, less); wait(); return table.concat(t, ',') .. (('abc'):gsub('%a', coroutine.wrap(function(c)
           while true do c = coroutine.yield(c .. c) end end)))",
    ),
    ("utf8", "local n = 0; for p, c in utf8.codes('aé€') do n = n + p * c + wait() end; return n .. utf8.char(8364, 233)"),
    ("two_at_once", "local a = coroutine.wrap(function() coroutine.yield(wait()); coroutine.yield(wait()) end)
      local b = coroutine.wrap(function() coroutine.yield(wait() * 10); coroutine.yield(wait() * 10) end)
      return a() + b() + a() + b()"),
];
