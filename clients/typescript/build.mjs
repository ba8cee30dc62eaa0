// Compiles src into dist/esm and dist/cjs, which are the same modules in the two formats of Node.
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";

process.chdir(import.meta.dirname ?? new URL(".", import.meta.url).pathname);
rmSync("dist", { recursive: true, force: true });
const tsc = (...options) => execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", ...options], { stdio: "inherit" });
tsc();
tsc("--module", "commonjs", "--moduleResolution", "bundler", "--verbatimModuleSyntax", "false", "--outDir", "dist/cjs");
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
