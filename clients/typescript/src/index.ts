/**
 * A client of Fencepost, a lock service: locks as leases with fencing tokens, read/write locks, semaphores, several locks at once,
 * and elections.
 *
 * @packageDocumentation
 */
export { Client, type LockToAcquire } from "./client.js";
export type { CampaignOptions, Election, Leader, LeadOptions, NoLeader } from "./election.js";
export {
  ClientClosed,
  FencepostError,
  InvalidArgument,
  LeaseLost,
  LockHeld,
  type LossCause,
  Overloaded,
  PermissionDenied,
  Unauthenticated,
  Unavailable,
  WaitTimeout,
} from "./errors.js";
export {
  ChangeKind,
  type Holder,
  type LockChange,
  type LockState,
  type LockSummary,
  type Mode,
  type Waiter,
  type WatchLockResponse,
} from "./gen/fencepost/v1/lock_pb.js";
export type { Leadership, Lock, Locks } from "./lock.js";
export type { AcquireOptions, ClientOptions, LockMode, Logger, WaitOptions } from "./options.js";
