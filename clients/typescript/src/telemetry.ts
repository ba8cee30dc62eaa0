import type { Attributes } from "@opentelemetry/api";

type Api = typeof import("@opentelemetry/api");

let loading: Promise<Api | undefined> | undefined;

/**
 * Runs `work` in a span, if the OpenTelemetry API is installed. What `work` gets adds an event with a cause to the span around it,
 * also later. A tracer that fails ends nothing.
 */
export async function traced<T>(
  name: string,
  attributes: Attributes,
  work: (event: (name: string, cause: string) => void) => Promise<T>,
): Promise<T> {
  loading ??= import("@opentelemetry/api").catch(() => undefined);
  const api = await loading;
  if (!api) return work(() => undefined);
  const around = attempt(() => api.trace.getActiveSpan());
  const span = attempt(() => api.trace.getTracer("fencepost-client").startSpan(name, { attributes }));
  try {
    return await work((event, cause) => attempt(() => void around?.addEvent(event, { ...attributes, "fencepost.cause": cause })));
  } catch (error) {
    attempt(() => error instanceof Error && span?.recordException(error));
    attempt(() => span?.setStatus({ code: api.SpanStatusCode.ERROR }));
    throw error;
  } finally {
    attempt(() => span?.end());
  }
}

function attempt<T>(call: () => T): T | undefined {
  try {
    return call();
  } catch {
    return undefined;
  }
}
