// A counter for each user, in memory.
const counts = new Map();
require("http").createServer((request, response) => {
  const key = request.url.slice(1);
  const count = (counts.get(key) || 0) + 1;
  counts.set(key, count);
  const body = String(count);
  response.writeHead(200, { "Content-Type": "text/plain", "Content-Length": body.length });
  response.end(body);
}).listen(Number(process.argv[2]), "127.0.0.1");
