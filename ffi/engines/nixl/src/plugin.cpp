/* kvrail as a back end of NIXL: objects by key (OBJ) and ranges of a volume (BLK), to and from
 * memory of the host (DRAM) and of GPUs (VRAM). The file's name in NIXL's folder is the back end's:
 * as libplugin_OBJ.so it serves engines that have only that one. No threads: each check makes
 * progress. */
#include <new>

#include "core.h"
#include "transfer.h"

using core::Segment;
using core::Status;

/* Nothing thrown may reach NIXL. */
template <class Work> static Status guarded(Work work) {
    try {
        return work();
    } catch (const Failure &failure) {
        print(failure.what());
        return failure.status();
    } catch (const std::exception &error) {
        print(error.what());
        return Status::failed;
    }
}

static Transfer &transfer_of(core::Request *it) { return *static_cast<Transfer *>(it); }

/* The object of a device number. NIXL finds objects by it: two of one number are one for NIXL. */
class Numbers {
    std::mutex mutex_;
    std::unordered_map<uint64_t, std::pair<std::string, size_t>> names_;

  public:
    void add(const Object &object) {
        std::lock_guard guard(mutex_);
        auto &[name, uses] = names_.try_emplace(object.number, object.name, 0).first->second;
        if (name != object.name)
            throw Failure(Status::invalid, "device number " + std::to_string(object.number) +
                                               " is object " + name + "; register " +
                                               object.name + " with another number");
        uses++;
    }

    void remove(uint64_t number) {
        std::lock_guard guard(mutex_);
        auto it = names_.find(number);
        if (it != names_.end() && --it->second.second == 0) names_.erase(it);
    }
};

class Backend final : public core::Engine {
    mutable Link link_;
    Numbers objects_;

  public:
    explicit Backend(const core::Beginning &it)
        : Engine(it), link_(Settings::of(it.backend, *it.parameters), it.agent) {
        link_.session();
    }

    bool moves_between_agents() const override { return false; }
    bool moves_within_agent() const override { return true; }
    bool has_notices() const override { return false; }
    Status connect(const std::string &) override { return Status::done; }
    Status disconnect(const std::string &) override { return Status::done; }
    Status unload(core::Registered *) override { return Status::done; }

    core::Segments segments() const override {
        core::Segments it{Segment::host, Segment::gpu};
        if (!link_.settings().store.empty()) it.push_back(Segment::object);
        if (!link_.settings().volume.empty()) it.push_back(Segment::volume);
        return it;
    }

    Status add(const core::Described &range, const Segment &segment,
               core::Registered *&out) override {
        return guarded([&] {
            out = registered(range, segment);
            return Status::done;
        });
    }

    Status remove(core::Registered *it) override {
        if (const auto *object = dynamic_cast<const Object *>(it)) objects_.remove(object->number);
        delete it;
        return Status::done;
    }

    /* One agent's own memory is its other side, too. */
    Status load_local(core::Registered *it, core::Registered *&out) override {
        out = it;
        return Status::done;
    }

    Status prepare(const core::Direction &direction, const core::Ranges<core::Moved> &local,
                   const core::Ranges<core::Moved> &remote, const std::string &,
                   core::Request *&out, const core::Options *) const override {
        return guarded([&] {
            out = new Transfer(direction, link_, local, remote);
            return Status::done;
        });
    }

    Status post(const core::Direction &, const core::Ranges<core::Moved> &,
                const core::Ranges<core::Moved> &, const std::string &, core::Request *&it,
                const core::Options *) const override {
        return guarded([&] { return transfer_of(it).post(); });
    }

    Status check(core::Request *it) const override {
        return guarded([&] { return transfer_of(it).check(); });
    }

    Status release(core::Request *it) const override {
        transfer_of(it).cancel();
        delete it;
        return Status::done;
    }

    Status query(const core::Ranges<core::Described> &asked, core::Answers &out) const override {
        return guarded([&] {
            if (asked.segment != Segment::object)
                throw Failure(Status::unsupported, "queryMem takes objects (OBJ) only");
            std::vector<kvrail_key> keys;
            for (const auto &it : asked.items) keys.push_back(Object(name_of(it), it.device).key);
            for (uint8_t there : link_.session()->present(keys))
                out.push_back(there ? std::optional(core::Parameters()) : std::nullopt);
            return Status::done;
        });
    }

  private:
    core::Registered *registered(const core::Described &range, Segment segment) {
        if (segment == Segment::object && !link_.settings().store.empty()) {
            auto object = std::make_unique<Object>(name_of(range), range.device);
            objects_.add(*object);
            return object.release();
        }
        if (segment == Segment::volume && !link_.settings().volume.empty()) return new Area;
        if (segment != Segment::host && segment != Segment::gpu)
            throw Failure(Status::unsupported,
                          "this back end takes DRAM, VRAM, OBJ with the parameter store, and BLK "
                          "with the parameter volume; FILE it does not move");
        std::optional<int> gpu;
        if (segment == Segment::gpu) gpu = Cuda::driver().gpu_of(range);
        auto memory = std::make_unique<Memory>(range, gpu);
        auto session = link_.session();
        if (!gpu) {
            memory->place(session, reinterpret_cast<uint8_t *>(range.address));
            return memory.release();
        }
        /* Now, not when the first request is posted. */
        std::lock_guard guard(session->mutex);
        session->gpu_way(*gpu);
        return memory.release();
    }
};

static core::Engine *create(const core::Beginning *it) {
    core::Engine *made = nullptr;
    guarded([&] {
        made = new Backend(*it);
        return Status::done;
    });
    return made;
}

static core::Plugin plugin{
    core::INTERFACE,
    create,
    [](core::Engine *it) { delete it; },
    [] { return "KVRAIL"; },
    kvrail_version,
    Settings::defaults,
    [] {
        return core::Segments{Segment::host, Segment::gpu, Segment::object, Segment::volume};
    },
};

extern "C" {
[[gnu::visibility("default")]] core::Plugin *nixl_plugin_init() {
    return is_known_core() ? &plugin : nullptr;
}

[[gnu::visibility("default")]] void nixl_plugin_fini() {}

/* Bytes that were copied because the sidecar could not map the memory they were in. */
[[gnu::visibility("default")]] uint64_t kvrail_nixl_copied_bytes() { return copied_bytes(); }

/* Bytes that were copied between GPUs and staging memory. */
[[gnu::visibility("default")]] uint64_t kvrail_nixl_gpu_copied_bytes() {
    return gpu_copied_bytes();
}
}
