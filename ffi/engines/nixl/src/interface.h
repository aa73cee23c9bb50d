/* The interface between NIXL's core and a plug-in, as far as this one needs it: numbers, layouts,
 * and the order of the virtual functions. NIXL's wheel has no headers. These are the releases 1.3
 * to 1.5; core.cpp refuses others. Names are ours: only places in memory count. */
#ifndef KVRAIL_NIXL_INTERFACE_H
#define KVRAIL_NIXL_INTERFACE_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace core {

enum class Segment : uint32_t { host, gpu, volume, object, file };
enum class Direction : uint32_t { read, write };
enum class Status : int32_t {
    in_progress = 1,
    done = 0,
    invalid = -2,
    failed = -3,
    not_found = -4,
    mismatch = -5,
    not_allowed = -6,
    unsupported = -9,
};

using Parameters = std::unordered_map<std::string, std::string>;
using Segments = std::vector<Segment>;
using Notices = std::vector<std::pair<std::string, std::string>>;
/* Properties of one requested object: none if it is not there. */
using Answers = std::vector<std::optional<Parameters>>;

/* What a plug-in keeps of registered memory. */
class Registered {
    [[maybe_unused]] bool private_ = true;

  public:
    virtual ~Registered() = default;
};

/* What a plug-in keeps of a request. */
class Request {
  public:
    virtual ~Request() = default;
};

struct Range {
    uintptr_t address;
    size_t bytes;
    uint64_t device;
};

/* A range of a registration or request, with its text. */
struct Described : Range {
    std::string text;
};

/* A range as it is moved, with what the plug-in keeps of it. */
struct Moved : Range {
    Registered *registered;
};

/* The core makes these; a plug-in only reads them. */
template <class T> class Ranges {
    const void *virtuals_;

  public:
    Segment segment;
    std::vector<T> items;
};

struct Beginning {
    std::string agent;
    std::string backend;
    Parameters *parameters;
    bool progress_thread;
    uint64_t progress_delay_us;
    int32_t locks;
    bool telemetry;
};

struct Options;

class Engine {
    std::string backend_;
    Parameters parameters_;
    std::vector<uint64_t> telemetry_events_;
    std::mutex telemetry_mutex_;

  protected:
    bool failed_ = false;
    const std::string agent_;
    const bool telemetry_;

  public:
    explicit Engine(const Beginning &it)
        : backend_(it.backend), parameters_(*it.parameters), agent_(it.agent),
          telemetry_(it.telemetry) {}
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    virtual ~Engine() = default;
    virtual bool moves_between_agents() const = 0;
    virtual bool moves_within_agent() const = 0;
    virtual bool has_notices() const = 0;
    virtual Segments segments() const = 0;
    virtual Status add(const Described &, const Segment &, Registered *&) = 0;
    virtual Status remove(Registered *) = 0;
    virtual Status connect(const std::string &) = 0;
    virtual Status disconnect(const std::string &) = 0;
    virtual Status unload(Registered *) = 0;
    virtual Status prepare(const Direction &, const Ranges<Moved> &local,
                           const Ranges<Moved> &remote, const std::string &, Request *&,
                           const Options *) const = 0;
    virtual Status post(const Direction &, const Ranges<Moved> &local, const Ranges<Moved> &remote,
                        const std::string &, Request *&, const Options *) const = 0;
    virtual Status check(Request *) const = 0;
    virtual Status release(Request *) const = 0;
    virtual Status remote_view(const void *, void *&, const Options *) const { return no(); }
    virtual Status local_view(const void *, void *&, const Options *) const { return no(); }
    virtual void release_view(void *) const {}
    virtual Status public_text(const Registered *, std::string &) const { return no(); }
    virtual Status connection_text(std::string &) const { return no(); }
    virtual Status load_connection(const std::string &, const std::string &) { return no(); }
    virtual Status load_remote(const Described &, const Segment &, const std::string &,
                               Registered *&) {
        return no();
    }
    virtual Status load_local(Registered *, Registered *&) { return no(); }
    virtual Status take_notices(Notices &) { return no(); }
    virtual Status send_notice(const std::string &, const std::string &) const { return no(); }
    virtual Status query(const Ranges<Described> &, Answers &) const { return no(); }
    virtual Status estimate(const Direction &, const Ranges<Moved> &, const Ranges<Moved> &,
                            const std::string &, Request *const &, std::chrono::microseconds &,
                            std::chrono::microseconds &, uint32_t &, const void *) const {
        return no();
    }

  private:
    static Status no() { return Status::unsupported; }
};

struct Plugin {
    int32_t interface;
    Engine *(*create)(const Beginning *);
    void (*destroy)(Engine *);
    const char *(*name)();
    const char *(*version)();
    Parameters (*parameters)();
    Segments (*segments)();
};

constexpr int32_t INTERFACE = 1;

static_assert(sizeof(Range) == 24 && sizeof(Described) == 56 && sizeof(Moved) == 32);
static_assert(sizeof(Ranges<Moved>) == 40 && sizeof(Beginning) == 0x60);
static_assert(sizeof(Engine) == 0xd0 && sizeof(Registered) == 16 && sizeof(Plugin) == 56);

} // namespace core

#endif
