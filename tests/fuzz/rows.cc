#include <algorithm>
#include <array>

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "scratch.h"

namespace octet::fuzz {

// The first byte chooses the kind of file.
void rows(std::string_view bytes) {
  static constexpr std::array kNames{"rows.jsonl", "rows.json", "rows.csv", "rows.txt", "rows.jsonl.gz"};
  if (bytes.empty()) return;
  const std::string path =
      scratch_file(kNames[static_cast<unsigned char>(bytes[0]) % kNames.size()], bytes.substr(1));
  try {
    const auto reader = data::open_rows(path);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(reader->size(), 64); ++i) {
      try {
        reader->where(i);
        const Json row = reader->row(i);
        data::RowFormat format = data::detect_format(row, "row");
        for (const auto kind :
             {format.kind, data::RowFormat::Kind::alpaca, data::RowFormat::Kind::sharegpt}) {
          format.kind = kind;
          data::convert_row(row, format, nullptr);
        }
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
