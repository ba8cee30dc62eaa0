#!/usr/bin/env node
// Runs the program with the arguments of this process, and ends as the program does.
const { spawn } = require("node:child_process");
const { constants } = require("node:os");
const { program } = require("./index.js");

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
// A terminal sends these to both, and a second one would end the program without a shutdown.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
child.on("error", (error) => {
  console.error(`fencepost: ${error.message}`);
  process.exit(126);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
