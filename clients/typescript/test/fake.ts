// A server that answers the commands of a Session as a test says.
import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import {
  LockService,
  type SessionCommand,
  type SessionEvent_CommandResultSchema,
  type SessionEventSchema,
} from "../dist/cjs/gen/fencepost/v1/lock_pb.js";
import { atEnd } from "./support.js";

export type Event = NonNullable<MessageInitShape<typeof SessionEventSchema>["event"]>;
export type Outcome = NonNullable<MessageInitShape<typeof SessionEvent_CommandResultSchema>["outcome"]>;
type Commands = SessionCommand["command"];
type Answer = Outcome | Event[] | undefined;
/** The answer to each kind of command: its outcome, or events; nothing: none. */
export type Handlers = {
  [kind in NonNullable<Commands["case"]>]?: (command: {
    id: bigint;
    value: Extract<Commands, { case: kind }>["value"];
  }) => Answer | Promise<Answer>;
};

/** What a server has seen of a stream. */
interface Seen {
  authorization: string | null;
  version: string;
  /** Its place in the session. */
  number: bigint;
  /** The kinds of its commands. */
  seen: string[];
  isOver: boolean;
  end: () => void;
  say: (events: Event[]) => void;
}

const DEFAULTS: Handlers = {
  open: () => ({ case: "open", value: {} }),
  cancel: () => ({ case: "cancel", value: {} }),
  attach: () => ({ case: "attach", value: {} }),
  detach: () => ({ case: "detach", value: {} }),
  keepAlive: ({ id }) => [{ case: "kept", value: { id } }],
  release: () => ({ case: "release", value: {} }),
};

export async function fake(handlers: Handlers, commandLimit = 1_000): Promise<{ address: string; sessions: Seen[] }> {
  const sessions: Seen[] = [];
  const all = { ...DEFAULTS, ...handlers } as Record<string, (command: object) => Answer | Promise<Answer>>;
  const routes = (router: ConnectRouter) =>
    router.service(LockService, {
      async *session(requests, { requestHeader }) {
        const out: Event[] = [{ case: "opened", value: { commandLimit } }];
        let wake = () => {};
        const seen: Seen = {
          authorization: requestHeader.get("authorization"),
          version: "",
          number: 0n,
          seen: [],
          isOver: false,
          end: () => {
            seen.isOver = true;
            wake();
          },
          say: (events) => {
            out.push(...events);
            wake();
          },
        };
        sessions.push(seen);
        const read = async () => {
          for await (const { commands } of requests) {
            for (const { id, command } of commands) {
              if (command.case === "open") [seen.version, seen.number] = [command.value.clientVersion, command.value.number];
              seen.seen.push(command.case ?? "");
              const answer = Promise.resolve(all[command.case ?? ""]?.({ id, value: command.value }));
              void answer.then((outcome) => {
                if (Array.isArray(outcome)) seen.say(outcome);
                else if (outcome) seen.say([{ case: "result", value: { id, outcome } } as Event]);
              });
            }
          }
        };
        read().catch(() => undefined);
        while (!seen.isOver) {
          if (out.length > 0) yield { events: out.splice(0).map((event) => ({ event })) };
          else await new Promise<void>((more) => (wake = more));
        }
      },
    });
  const server = http2.createServer(connectNodeAdapter({ routes }));
  const open = new Set<http2.ServerHttp2Session>();
  server.on("session", (session) => open.add(session));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  atEnd(() => {
    for (const session of open) session.destroy();
    server.close();
  });
  return { address: `127.0.0.1:${(server.address() as AddressInfo).port}`, sessions };
}
