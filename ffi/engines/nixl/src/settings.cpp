#include <charconv>
#include <cstdio>

#include "session.h"

static uint64_t number(const std::string &name, const std::string &text) {
    uint64_t it = 0;
    const char *end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, it);
    if (error != std::errc() || stop != end || it == 0)
        throw Failure(core::Status::invalid,
                      "parameter " + name + " is '" + text + "'; it is a whole number above 0");
    return it;
}

/* Engines with one object back end only give it the parameters of an object store. */
static Settings of_object_store(const core::Parameters &given) {
    Settings it;
    it.store = "kv";
    for (const auto &[name, text] : given) {
        if (name == "bucket") it.space = text;
        if (name == "store") it.store = text;
        if (name == "identity") it.identity = text;
        if (name == "endpoint_override" && !text.empty()) it.socket = text;
    }
    if (!it.socket.starts_with('/'))
        throw Failure(core::Status::invalid,
                      "endpoint_override is '" + it.socket +
                          "'; kvrail serves the backend OBJ here, and it is the path of the "
                          "sidecar's socket, as " + Settings().socket);
    return it;
}

Settings Settings::of(const std::string &backend, const core::Parameters &given) {
    if (backend == "OBJ") return of_object_store(given);
    Settings it;
    for (const auto &[name, text] : given) {
        if (name == "socket") it.socket = text;
        else if (name == "store") it.store = text;
        else if (name == "namespace") it.space = text;
        else if (name == "identity") it.identity = text;
        else if (name == "volume") it.volume = text;
        else if (name == "depth") it.depth = number(name, text);
        else if (name == "staging_bytes") it.staging_bytes = number(name, text);
        else
            throw Failure(core::Status::invalid,
                          "no parameter '" + name + "'; there are socket, store, namespace, "
                          "identity, volume, depth, staging_bytes");
    }
    if (it.store.empty() && it.volume.empty()) it.store = "kv";
    return it;
}

core::Parameters Settings::defaults() {
    Settings it;
    return {{"socket", it.socket},
            {"store", "kv"},
            {"namespace", it.space},
            {"identity", it.identity},
            {"depth", std::to_string(it.depth)},
            {"staging_bytes", std::to_string(it.staging_bytes)}};
}

void print(const std::string &line) { std::fprintf(stderr, "kvrail for NIXL: %s\n", line.c_str()); }
