#include "core.h"

#include <cstdio>
#include <filesystem>
#include <link.h>
#include <string>
#include <utility>

#include "session.h"

namespace fs = std::filesystem;
using Release = std::pair<int, int>;

/* The engine class is the same in these, and its layout was compared with the wheel's plug-ins. */
constexpr Release OLDEST{1, 3}, NEWEST{1, 5};

static int find_core(dl_phdr_info *info, size_t, void *found) {
    fs::path path = info->dlpi_name;
    if (path.filename() != "libnixl.so") return 0;
    *static_cast<fs::path *>(found) = path;
    return 1;
}

/* In the folder of .nixl_cu12.mesonpy.libs a wheel has nixl_cu12-1.5.1.dist-info. */
static std::string wheel_version(const fs::path &core) {
    std::string libraries = core.parent_path().filename();
    std::string package = libraries.substr(libraries.empty() ? 0 : 1);
    package = package.substr(0, package.find('.')) + "-";
    std::error_code error;
    for (const auto &entry : fs::directory_iterator(core.parent_path().parent_path(), error)) {
        std::string name = entry.path().filename();
        if (name.starts_with(package) && name.ends_with(".dist-info"))
            return name.substr(package.size(), name.rfind(".dist-info") - package.size());
    }
    return "";
}

bool is_known_core() {
    fs::path core;
    dl_iterate_phdr(find_core, &core);
    std::string version = wheel_version(core), range = "NIXL 1.3 to 1.5";
    Release release;
    if (std::sscanf(version.c_str(), "%d.%d", &release.first, &release.second) != 2) {
        print("no wheel of NIXL is around " + core.string() + ", so its version is not known; " +
            "this plug-in is for " + range);
        return true;
    }
    if (OLDEST <= release && release <= NEWEST) return true;
    print("this plug-in is for " + range + ", and " + core.string() + " is " + version +
        "; install nixl 1.5.1, or a kvrail for " + version);
    return false;
}
