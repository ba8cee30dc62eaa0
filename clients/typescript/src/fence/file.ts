import { spawn } from "node:child_process";
import { once } from "node:events";
import { open, readFile, rename } from "node:fs/promises";
import { dirname } from "node:path";
import { compare, type HeldLock, kept, type NamedToken, named } from "./token.js";

/**
 * Raises the token beside a file, and keeps other holders of this machine out until `work` has ended.
 *
 * The token is in `PATH.token`, and `PATH.lock` is locked meanwhile by the program `flock` of util-linux, because Node has no such
 * call: all processes must see one file system that has it. Delete neither of them. Give the file its content at once, by a rename, if the process may end in
 * `work`. Rejects with {@link StaleToken}.
 */
export async function file<Result>(
  path: string,
  lock: HeldLock | NamedToken,
  work: (path: string) => Promise<Result> | Result,
): Promise<Result> {
  const { name, token } = named(lock);
  const unlock = await locked(`${path}.lock`);
  try {
    const text = await readFile(`${path}.token`, "utf8").catch((error) => {
      if (error.code === "ENOENT") return undefined;
      throw error;
    });
    const highest = text === undefined ? 0 : kept(text.trim(), `${path}.token has no token`);
    compare({ name, token }, highest);
    if (highest < token) await replace(`${path}.token`, String(token));
    return await work(path);
  } finally {
    await unlock();
  }
}

// Signals to the process group, as of Ctrl-C, end neither the child nor its lock, because this process may go on. The child ends
// with this process, which closes its input.
const HOLD = "trap '' HUP INT QUIT USR1 USR2 ALRM TERM; exec flock \"$0\" sh -c 'echo && exec cat'";

/** Locks a file until the returned function is called, which rejects if the lock has ended before. */
async function locked(path: string): Promise<() => Promise<void>> {
  const child = spawn("sh", ["-c", HOLD, path], { stdio: ["pipe", "pipe", "inherit"] });
  const ended = once(child, "close");
  const answers = () => Promise.race([once(child.stdout, "data").then(() => true), ended.then(() => false)]);
  if (!(await answers())) throw new Error(`flock cannot lock ${path}`);
  return async () => {
    child.stdin.on("error", () => undefined).end("\n");
    if (!(await answers())) throw new Error(`the lock of ${path} has ended early: another holder may have run beside this one`);
    await ended;
  };
}

/** Durably: a crash leaves the old content or the new one. */
async function replace(path: string, text: string): Promise<void> {
  await synced(`${path}.new`, "w", text);
  await rename(`${path}.new`, path);
  await synced(dirname(path), "r");
}

async function synced(path: string, flags: string, text?: string): Promise<void> {
  const handle = await open(path, flags);
  try {
    if (text !== undefined) await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
}
