/// Prints the tiles of the attention kernels as JSON, for machine_code.py.

#include "kernels/attention_tiles.hpp"

#include <cstdio>
#include <initializer_list>

using kvtier::kernels::DecodeTiles;
using kvtier::kernels::kAttentionThreads;
using kvtier::kernels::PrefillTiles;
using kvtier::kernels::WarpgroupTiles;

int main() {
  const char* separator = "[";
  const auto print = [&](const char* kernel, int head_dim, int columns, int kv_bytes, int stages,
                         int shared, int in_flight, int threads = kAttentionThreads) {
    std::printf(
        "%s\n{\"kernel\": \"%s\", \"head_dim\": %d, \"columns\": %d, \"kv_bytes\": %d, "
        "\"threads\": %d, \"stages\": %d, \"shared\": %d, \"in_flight\": %d}",
        separator, kernel, head_dim, columns, kv_bytes, threads, stages, shared, in_flight);
    separator = ",";
  };
  for (const int head_dim : {64, 128, 256}) {
    for (const int kv_bytes : {1, 2}) {
      for (const int columns : {8, 16}) {
        const DecodeTiles tiles{.head_dim = head_dim, .columns = columns, .kv_bytes = kv_bytes};
        print("decode_kernel", head_dim, columns, kv_bytes, tiles.stages(),
              tiles.shared_bytes(false), tiles.bytes_in_flight());
      }
      const PrefillTiles tiles{.head_dim = head_dim, .kv_bytes = kv_bytes};
      print("prefill_kernel", head_dim, 0, kv_bytes, tiles.stages(), tiles.shared_bytes(),
            tiles.bytes_in_flight());
    }
  }
  print("warpgroup_prefill_kernel", WarpgroupTiles::kHeadDim, 0, kvtier::kernels::kElementBytes,
        WarpgroupTiles::kKeyStages, WarpgroupTiles::kSharedBytes, WarpgroupTiles::kBytesInFlight,
        WarpgroupTiles::kThreads);
  std::printf("]\n");
}
