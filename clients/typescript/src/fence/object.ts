import { compare, type HeldLock, type NamedToken, named, parse } from "./token.js";

/** How an object of S3, or of a store with conditional writes, is read and replaced. */
export interface ObjectStore {
  /** Resolves with the body and its ETag; with `undefined` if there is no object. */
  get(): Promise<{ body: Uint8Array; etag: string } | undefined>;
  /**
   * Replaces the object on the condition that it has this ETag (`If-Match`), or without one, that there is none
   * (`If-None-Match: *`). Resolves with `false` if the store answers 404, 409 or 412, because another write came between.
   */
  put(body: Uint8Array, etag: string | undefined): Promise<boolean>;
}

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
    for (;;) {
      const object = await this.#store.get();
      const { highest, found } = object ? decode(object.body) : { highest: 0, found: undefined };
      compare({ name, token }, highest);
      if (!data && highest === token) return found;
      const next = data ?? found;
      const head = Buffer.from(`fencing-token: ${token}\n${next ? 1 : 0}\n`);
      if (await this.#store.put(Buffer.concat([head, next ?? Buffer.alloc(0)]), object?.etag)) return found;
    }
  }
}

function decode(body: Uint8Array): { highest: number; found: Buffer | undefined } {
  const bytes = Buffer.from(body);
  const head = HEAD.exec(bytes.toString("latin1", 0, 64));
  if (!head?.[1]) throw new Error("the object does not begin with a token: put one there first");
  return { highest: parse(head[1]), found: head[2] === "1" ? bytes.subarray(head[0].length) : undefined };
}
