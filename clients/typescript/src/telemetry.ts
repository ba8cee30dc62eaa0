import type { Attributes } from "@opentelemetry/api";

type Api = typeof import("@opentelemetry/api");

let loading: Promise<Api | undefined> | undefined;

/**
 * Runs `work` in a span, if the OpenTelemetry API is installed. What `work` gets adds an event with a cause to the span around it,
 * also later.
 */
export async function traced<T>(
  name: string,
  attributes: Attributes,
  work: (event: (name: string, cause: string) => void) => Promise<T>,
): Promise<T> {
  loading ??= import("@opentelemetry/api").catch(() => undefined);
  const api = await loading;
  if (!api) return work(() => undefined);
  const around = api.trace.getActiveSpan();
  return api.trace.getTracer("fencepost-client").startActiveSpan(name, { attributes }, async (span) => {
    try {
      return await work((event, cause) => around?.addEvent(event, { ...attributes, "fencepost.cause": cause }));
    } catch (error) {
      if (error instanceof Error) span.recordException(error);
      span.setStatus({ code: api.SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}
