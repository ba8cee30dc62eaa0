# The server and its commands, in an image without a shell, as a user without rights. `scripts/dist` builds the program and
# packs what the image gets, for each architecture; `scripts/release image` makes the index of both.
#
#   scripts/dist x86_64-unknown-linux-musl
#   docker build --tag fencepost --file Dockerfile target/dist/image

# Certificates of authorities, time zones, and the user. A release gives the digest.
ARG BASE=gcr.io/distroless/static-debian12:nonroot
FROM ${BASE}
ARG TARGETARCH
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG BASE
LABEL org.opencontainers.image.title="fencepost" \
      org.opencontainers.image.description="A lock service over gRPC whose leases have fencing tokens" \
      org.opencontainers.image.url="https://github.com/fencepost/fencepost" \
      org.opencontainers.image.source="https://github.com/fencepost/fencepost" \
      org.opencontainers.image.documentation="https://github.com/fencepost/fencepost/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="Fencepost" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
# The program, and the folder for data, which belongs to the user.
ADD ${TARGETARCH}.tar /
USER 65532:65532
# The data of an embedded store, where a volume is mounted.
ENV FENCEPOST_DATA_DIR=/var/lib/fencepost
EXPOSE 50051 9464
# It ends in order on SIGTERM.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/fencepost"]
CMD ["serve"]
