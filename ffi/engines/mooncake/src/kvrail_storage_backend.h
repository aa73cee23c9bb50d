// kvrail's keyed store as a storage back end of Mooncake's store.
#pragma once

#include <memory>

namespace mooncake {

struct FileStorageConfig;
class StorageBackendInterface;

std::shared_ptr<StorageBackendInterface> CreateKvrailStorageBackend(
    const FileStorageConfig &config);

}  // namespace mooncake
