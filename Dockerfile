# syntax=docker/dockerfile:1
# The gateway alone: no shell, no package manager, not root.
#
#   docker build -t oncegate .
#   docker run -p 8080:8080 -v "$PWD/oncegate.toml:/data/oncegate.toml:ro" oncegate
#
# It listens on every address of its container, so that its configuration has to say who may call: `[auth]`, or
# `auth.anonymous = true`. The embedded store, where that is used, is in /data/oncegate-data: give it a volume.

FROM rust:1.95-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY migrations migrations
COPY src src
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked --bin oncegate \
    && install -D target/release/oncegate /image/usr/local/bin/oncegate \
    && install -d -o 65532 -g 65532 /image/data/oncegate-data

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="Oncegate" \
      org.opencontainers.image.description="An HTTP gateway for messages: nothing is lost, and the same work takes effect once." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/ /
COPY LICENSE /usr/share/doc/oncegate/LICENSE
# `oncegate.toml` is read from here, and the embedded store is kept here.
WORKDIR /data
ENV ONCEGATE__SERVER__LISTEN=0.0.0.0:8080
EXPOSE 8080
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["/usr/local/bin/oncegate", "health"]
ENTRYPOINT ["/usr/local/bin/oncegate"]
CMD ["serve"]
