/** A held lock, such as a `Lock` of the client: its name, and a check that returns its token or throws. */
export interface HeldLock {
  readonly name: string;
  check(): number;
}

/** The lock and the token that a request brought. */
export interface NamedToken {
  readonly name: string;
  readonly token: number;
}

/** A newer holder of the lock has used the resource: nothing was changed. */
export class StaleToken extends Error {
  override readonly name = "StaleToken";

  constructor(
    /** The name of the lock. */
    readonly lock: string,
    /** The token that was refused. */
    readonly token: number,
  ) {
    super(`token ${token} of ${JSON.stringify(lock)} is older than the highest that this resource has seen`);
  }
}

/** A token is a number from 1 to 2^53 - 1. */
export class InvalidToken extends RangeError {
  override readonly name = "InvalidToken";
}

/** The name and the token of a held lock, or of a request. */
export function named(lock: HeldLock | NamedToken): NamedToken {
  return { name: lock.name, token: valid("check" in lock ? lock.check() : lock.token) };
}

/** @throws StaleToken unless `highest` is known and not above the token. */
export function compare({ name, token }: NamedToken, highest: number): void {
  if (!(highest <= token)) throw new StaleToken(name, token);
}

export function parse(text: string): number {
  // Number() also takes signs, spaces and exponents.
  return valid(/^[0-9]{1,16}$/.test(text) ? Number(text) : text);
}

/** The token that a resource keeps. An `InvalidToken` is said of those that callers give. */
export function kept(text: string, problem: string): number {
  try {
    return parse(text);
  } catch (cause) {
    throw new Error(problem, { cause });
  }
}

function valid(token: unknown): number {
  if (Number.isSafeInteger(token) && (token as number) > 0) return token as number;
  throw new InvalidToken(`token must be a number from 1 to 2^53 - 1, not ${JSON.stringify(token)}`);
}

/** Whether it is a StaleToken of this copy of the package or of another one, since ES modules and CommonJS have one each. */
export function isStale(error: unknown): boolean {
  return error instanceof Error && error.name === "StaleToken";
}
