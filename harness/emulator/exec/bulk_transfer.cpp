#include "emulator/exec/bulk_transfer.h"

namespace flash_ladder::emulator {

std::vector<std::uint32_t> BulkTransfer::chunks() const {
  std::vector<std::uint32_t> chunks;
  chunks.reserve(bytes() / kChunk);
  for (std::uint32_t row = 0; row < extent(); row += row_pitch()) {
    for (std::uint32_t at = 0; at < row_bytes; at += kChunk) chunks.push_back(swizzled(shared + row + at, swizzle));
  }
  return chunks;
}

std::vector<std::uint32_t> BulkTransfer::source_chunks() const {
  std::vector<std::uint32_t> chunks;
  for (std::uint32_t at = 0; at < bytes(); at += kChunk) chunks.push_back(source->offset + at);
  return chunks;
}

}  // namespace flash_ladder::emulator
