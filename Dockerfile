# The operator's image: one static binary and nothing else, run as a user without privileges.
#
#   docker build .                     compiles in a container of the Rust image
#   make image                         compiles on this machine and needs no network: target `prebuilt` below
#
# It has no CA certificates: the API server's comes with the service account, a Redis master's with its Secret.

FROM scratch AS runtime
USER 65532:65532
ENTRYPOINT ["/redlock"]

# hack/image.sh puts the binary into the build context.
FROM runtime AS prebuilt
COPY redlock /redlock

FROM rust:1.95-slim-bookworm AS builder
WORKDIR /src
COPY . .
# The explicit --target keeps +crt-static away from build scripts and procedural macros.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    target="$(uname -m)-unknown-linux-gnu" \
 && RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --release --bin redlock --target "$target" \
 && cp "target/$target/release/redlock" /redlock

FROM runtime
COPY --from=builder /redlock /redlock
