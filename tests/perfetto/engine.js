// Runs Perfetto's trace processor, a WebAssembly module for web workers, in Node.js. It speaks the processor's RPC
// protocol on stdin and stdout. The argument is the path of Perfetto's engine_bundle.js.
"use strict";
const fs = require("fs");
const path = require("path");

const { argv, stdin, stderr } = process;
const bundle = argv[2];
const note = (...words) => stderr.write(words.join(" ") + "\n");

globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "http://localhost/", protocol: "http:", host: "localhost" };
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.file = path.join(path.dirname(bundle), path.basename(url));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
};
console.log = console.warn = console.error = note;
globalThis.process = undefined; // the module was built for browsers, and ends where it finds Node.js

(0, eval)(fs.readFileSync(bundle, "utf8"));
const port = {
  postMessage: (data) => {
    for (let at = 0; at < data.length; ) at += fs.writeSync(1, data, at);
  },
};
self.onmessage({ data: port });
stdin.on("data", (data) => port.onmessage({ data: new Uint8Array(data) }));
