// Answers each request with a nonce chosen at the start and the number of requests so far.
const nonce = require("crypto").randomBytes(8).toString("hex");
let count = 0;
const server = require("http").createServer((request, response) => {
  const body = `nonce=${nonce} count=${++count}\n`;
  response.writeHead(200, { "Content-Type": "text/plain", "Content-Length": body.length });
  response.end(body);
});
server.keepAliveTimeout = 0;
server.headersTimeout = 0;
server.requestTimeout = 0;
server.listen(Number(process.argv[2]), "0.0.0.0");
