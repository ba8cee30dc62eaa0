import type { Event } from "./command.js";
import type { Core } from "./core.js";
import { incomplete, LeaseLost } from "./errors.js";
import type { SessionEvent_Leader as LeaderMessage } from "./gen/fencepost/v1/lock_pb.js";
import type { Lease } from "./lease.js";
import { holdWhile, Leadership } from "./lock.js";
import { guard, type WaitOptions } from "./options.js";

/** The leader of an election. */
export interface Leader {
  /** The fencing token of the leadership. */
  token: number;
  /** The owner label of the leader. */
  candidate: string;
  /** What the leader shows, such as its address. */
  value: string;
}

/** Nobody leads. */
export type NoLeader = { [field in keyof Leader]: null };

/** Options of {@link Election.campaign}. */
export interface CampaignOptions extends Omit<WaitOptions, "metadata"> {
  /** What observers see of this leader, at most 4 KiB. Default: empty. */
  value?: string;
}

/** Options of {@link Election.lead}. */
export interface LeadOptions extends Omit<CampaignOptions, "waitMs" | "renew"> {
  /** The work of the leader. It has to stop by itself when the signal of the leadership aborts. */
  onElected: (leadership: Leadership) => unknown;
  /** Called after `onElected` has ended because the leadership was lost. A failure is logged. */
  onDeposed?: (loss: LeaseLost) => unknown;
}

/** An election: the exclusive lock of the same name, whose holder leads and shows a value. */
export class Election {
  readonly #core: Core;

  /** @internal */
  constructor(
    core: Core,
    /** The name of the election. */
    readonly name: string,
  ) {
    this.#core = core;
  }

  /** Becomes the leader, at once or after a wait. Rejects as {@link Client.acquire}. */
  async campaign({ value = "", ...options }: CampaignOptions = {}): Promise<Leadership> {
    const leases = await this.#core.take([this.name], options, ({ owner, metadata: _, ...fields }, keep) => ({
      case: "campaign",
      value: { ...fields, election: this.name, candidate: owner, value, keep },
    }));
    return new Leadership(this.#core, leases[0] as Lease);
  }

  /**
   * Leads again and again: waits for the leadership without a limit, runs `onElected`, and campaigns again if the leadership was
   * lost. Resolves when `onElected` has ended by itself. Rejects with its error, with an error of the campaign that waiting does not
   * cure, and with the reason of `signal`; the leadership is released in each case.
   */
  async lead({ onElected, onDeposed, ...options }: LeadOptions): Promise<void> {
    for (;;) {
      const leadership = await this.campaign({ ...options, waitMs: Number.POSITIVE_INFINITY });
      try {
        await holdWhile(leadership, options.signal, onElected);
        return options.signal?.throwIfAborted();
      } catch (error) {
        if (!(error instanceof LeaseLost) || error !== leadership.lease.loss || options.signal?.aborted) throw error;
        await guard(this.#core.settings.logger, () => onDeposed?.(error));
      }
    }
  }

  /** The present leader, or null if nobody leads. Rejects after at most 10 s. */
  async leader(): Promise<Leader | null> {
    const { leader } = await this.#core.call(({ elections }, options) => elections.getLeader(this.#request, options));
    return leader ? shown(leader) : null;
  }

  /**
   * The present leader, or that nobody leads, then each change. It never goes back to a leader with an older token, and goes on at
   * the next server when one fails. It throws the reason of `signal` when that aborts.
   */
  async *observe({ signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Leader | NoLeader, void, undefined> {
    const message = { case: "observe", value: this.#request } as const;
    const pick = ({ case: kind, value }: Event) => {
      if (kind !== "observed") throw incomplete();
      return value;
    };
    let newest = 0;
    let last: Leader | NoLeader | undefined;
    for await (const { leader } of this.#core.follow(message, pick, signal)) {
      const next = leader ? shown(leader) : { token: null, candidate: null, value: null };
      const isOld = next.token !== null && next.token < newest;
      if (isOld || (last && next.token === last.token && next.value === last.value)) continue;
      newest = next.token ?? newest;
      last = next;
      yield next;
    }
  }

  get #request(): { namespace: string; election: string } {
    return { namespace: this.#core.settings.namespace, election: this.name };
  }
}

const shown = ({ candidate, fencingToken, value }: Pick<LeaderMessage, "candidate" | "fencingToken" | "value">): Leader => ({
  token: Number(fencingToken),
  candidate,
  value,
});
