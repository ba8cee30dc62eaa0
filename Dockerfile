# The server and its commands, in an image without a shell, as a user without rights.
#
#   docker build --tag fencepost .

FROM rust:1.90-slim-bookworm AS build
WORKDIR /source
COPY . .
# The source's own lock file, and nothing of the host's target directory.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --locked --release --bin fencepost \
    && install -D target/release/fencepost /image/fencepost \
    && install -d -o 65532 -g 65532 /image/var/lib/fencepost

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /image /
USER 65532:65532
# The data of an embedded store, where a volume is mounted.
ENV FENCEPOST_DATA_DIR=/var/lib/fencepost
EXPOSE 50051 9464
# It ends in order on SIGTERM.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/fencepost"]
CMD ["serve"]
