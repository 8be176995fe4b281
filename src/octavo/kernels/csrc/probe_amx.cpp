#include "amx.h"
#include "probe.h"

namespace octavo {

// Includes tile loads. Normally they are hidden behind the multiplications (97 % of the speed without loads), but in
// some virtual machines the loads become slow for seconds at a time, which this probe makes visible.
void multiply_tiles_in_cache(int32_t num_steps) {
  alignas(64) static thread_local char tiles[4][1024];
  configure_tiles(16, 16);
  for (int32_t i = 0; i < num_steps; ++i) {
    for (int row = 0; row < 2; ++row) {
      _tile_loadd(0, tiles[row], 64);
      _tile_loadd(2, tiles[2], 64);
      _tile_dpbf16ps(4, 0, 2);
      _tile_loadd(2, tiles[3], 64);
      _tile_dpbf16ps(5, 0, 2);
    }
  }
  _tile_release();
}

}  // namespace octavo
