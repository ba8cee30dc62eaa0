import { compare, type HeldLock, kept, type NamedToken, named } from "./token.js";

/** How an object of S3, or of a store with conditional writes, is read and replaced. */
export interface ObjectStore {
  /** Resolves with the body and its ETag; with `undefined` if there is no object, but not if there is no bucket. */
  get(): Promise<{ body: Uint8Array; etag: string } | undefined>;
  /**
   * Replaces the object on the condition that it has this ETag (`If-Match`), or without one, that there is none
   * (`If-None-Match: *`). Resolves with `false` if another write came between: the store answers 409, 412, or that the
   * object is missing.
   */
  put(body: Uint8Array, etag: string | undefined): Promise<boolean>;
}

// A write fails only if another one came between, and those of one lock are few.
const ATTEMPTS = 100;

// The next line is 1, or 0 while the object has a token alone.
const HEAD = /^fencing-token: ([0-9]+)\n([01])\n/;

/**
 * An object whose body begins with the token of its last holder.
 *
 * The token is in the body, because a conditional write compares the ETag, which is that of the body alone: with the token in the
 * metadata, a paused holder that read the same bytes as they are now would pass.
 */
export class FencedObject {
  readonly #store: ObjectStore;

  constructor(store: ObjectStore) {
    this.#store = store;
  }

  /** Raises the token, then resolves with what the object has; `undefined` if there is none. Rejects with {@link StaleToken}. */
  read(lock: HeldLock | NamedToken): Promise<Buffer | undefined> {
    return this.#change(lock);
  }

  /** Replaces what the object has. Rejects with {@link StaleToken}, and then nothing was changed. */
  async write(lock: HeldLock | NamedToken, data: Uint8Array | string): Promise<void> {
    await this.#change(lock, Buffer.from(data as Uint8Array));
  }

  async #change(lock: HeldLock | NamedToken, data?: Buffer): Promise<Buffer | undefined> {
    const { name, token } = named(lock);
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const object = await this.#store.get();
      if (object?.etag === "") throw new Error("the store gave the object without an ETag, on which writes depend");
      const { highest, found } = object ? decode(object.body) : { highest: 0, found: undefined };
      compare({ name, token }, highest);
      if (!data && highest === token) return found;
      const next = data ?? found;
      const head = Buffer.from(`fencing-token: ${token}\n${next ? 1 : 0}\n`);
      if (await this.#store.put(Buffer.concat([head, next ?? Buffer.alloc(0)]), object?.etag)) return found;
    }
    throw new Error(`the store refused the write at ${ATTEMPTS} attempts, as if others had replaced the object`);
  }
}

function decode(body: Uint8Array): { highest: number; found: Buffer | undefined } {
  const bytes = Buffer.from(body);
  const [head = "", token = "", filled] = HEAD.exec(bytes.toString("latin1", 0, 64)) ?? [];
  const highest = kept(token, "the object does not begin with a token: put one there first");
  return { highest, found: filled === "1" ? bytes.subarray(head.length) : undefined };
}
