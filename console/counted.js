// Counts the locks of a namespace: its longest queues, the owners of its locks, and the locks of one owner.

import { call } from "./api.js";
import { seconds } from "./time.js";

/** The maximum number of pages that are read. */
const MAX_PAGES = 100;
/** How many locks the first page has, so that a slow store shows something soon; each page has twice as many as the last. */
const FIRST_PAGE = 250;
const LARGEST_PAGE = 10_000;
/** How long pages are read, in ms. */
const TIME_LIMIT = 8000;
/** How many locks and owners are shown, how many locks of one owner, and how many of an owner are named. */
const SHOWN = 100;
const SHOWN_OF_OWNER = 1000;
const NAMED = 5;

/** Reads the locks with a prefix, of which those that `of` holds are `held`. */
export async function count(namespace, prefix, of, signal) {
  const began = performance.now();
  const all = { locks: 0, holders: 0, waiters: 0, complete: false, longest: [], owners: new Map(), held: [] };
  let [pageToken, pageSize] = ["", FIRST_PAGE];
  for (let page = 0; page < MAX_PAGES && performance.now() - began < TIME_LIMIT; page += 1) {
    const answer = await call("LockService/ListLocks", { namespace, prefix, pageSize, pageToken }, signal);
    for (const lock of answer.locks) add(all, lock, of);
    all.longest.sort((one, other) => other.waiterCount - one.waiterCount || (one.name < other.name ? -1 : 1));
    all.longest.length = Math.min(all.longest.length, SHOWN);
    pageToken = answer.nextPageToken;
    all.complete = pageToken === "";
    if (all.complete) break;
    pageSize = Math.min(2 * pageSize, LARGEST_PAGE);
  }
  const owners = [...all.owners.values()];
  owners.sort((one, other) => other.locks - one.locks || (one.owner < other.owner ? -1 : 1));
  return { ...all, owners: owners.slice(0, SHOWN) };
}

function add(all, lock, of) {
  all.locks += 1;
  all.holders += lock.holderCount;
  all.waiters += lock.waiterCount;
  if (lock.waiterCount > 0) all.longest.push(lock);
  if (!lock.firstHolder) return;
  const { owner, identity, remainingTtl } = lock.firstHolder;
  if (of && of.owner === owner && of.identity === identity && all.held.length < SHOWN_OF_OWNER) all.held.push(lock);
  const key = JSON.stringify([owner, identity]);
  const none = { owner, identity, locks: 0, waiters: 0, shortestTtlS: Number.POSITIVE_INFINITY, names: [] };
  const owned = all.owners.get(key) ?? none;
  all.owners.set(key, owned);
  owned.locks += 1;
  owned.waiters += lock.waiterCount;
  owned.shortestTtlS = Math.min(owned.shortestTtlS, seconds(remainingTtl));
  if (owned.names.length < NAMED) owned.names.push(lock.name);
}
