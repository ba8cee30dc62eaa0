package com.fencepost.client;

import com.fencepost.v1.AcquireRequest;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.StatusCode;
import java.lang.System.Logger.Level;
import java.util.concurrent.TimeUnit;

/** The span of an acquire, through the OpenTelemetry API where the program has it. */
class Spans {
    static final Spans NONE = new Spans();
    private static final boolean HAS_API = hasApi();

    private static boolean hasApi() {
        try {
            // Older versions cannot be asked without being set for ever.
            Class.forName("io.opentelemetry.api.GlobalOpenTelemetry").getMethod("getOrNoop");
            return true;
        } catch (ReflectiveOperationException absent) {
            return false;
        }
    }

    static Spans acquire(AcquireRequest request, long wait) {
        try {
            return HAS_API ? new OfApi(request, wait) : NONE;
        } catch (RuntimeException | LinkageError failed) {
            return NONE;
        }
    }

    void end(Throwable error) {}

    void lost(LeaseLostException loss) {}

    /** A tracer that fails ends nothing. */
    static void guarded(Runnable tracing) {
        try {
            tracing.run();
        } catch (RuntimeException | LinkageError failed) {
            Session.log(Level.WARNING, "a tracer failed: " + failed);
        }
    }

    private static final class OfApi extends Spans {
        /** The span of the work under the lock, which shows the loss. */
        private final Span caller = Span.current();
        private final Span span;

        OfApi(AcquireRequest request, long wait) {
            span = GlobalOpenTelemetry.getOrNoop().getTracer("com.fencepost.client").spanBuilder("fencepost.acquire")
                    .setAttribute("fencepost.namespace", request.getNamespace())
                    .setAttribute("fencepost.lock", request.getName())
                    .setAttribute("fencepost.wait_ms", TimeUnit.NANOSECONDS.toMillis(wait))
                    .startSpan();
        }

        @Override
        void end(Throwable error) {
            guarded(() -> {
                if (error != null) {
                    span.setStatus(StatusCode.ERROR, error.toString());
                }
                span.end();
            });
        }

        @Override
        void lost(LeaseLostException loss) {
            guarded(() -> caller.addEvent("lost"));
        }
    }
}
