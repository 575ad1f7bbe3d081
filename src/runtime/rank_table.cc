#include "octet/runtime/rank_table.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::runtime {
namespace {

constexpr std::size_t kMostRows = 64;

using Cells = std::vector<std::string>;

}  // namespace

std::vector<std::string> rank_table(const std::vector<RankRow>& rows, const std::vector<std::string>& more) {
  std::vector<Cells> table{{"rank", "host", "GPU", "bus", "NUMA", "free"}};
  table.front().insert(table.front().end(), more.begin(), more.end());
  const std::size_t columns = table.front().size();
  for (const RankRow& row : rows) {
    if (table.size() > kMostRows) break;
    Cells& cells =
        table.emplace_back(Cells{std::to_string(row.rank), row.host, row.gpu, row.bus.empty() ? "-" : row.bus,
                                 row.numa_node < 0 ? "-" : std::to_string(row.numa_node),
                                 human_bytes(static_cast<double>(row.free_bytes))});
    cells.insert(cells.end(), row.more.begin(), row.more.end());
    check(cells.size() == columns, "every rank has a text for every column");
  }
  std::vector<std::size_t> widths(columns, 0);
  for (const Cells& cells : table) {
    for (std::size_t c = 0; c < columns; ++c) widths[c] = std::max(widths[c], cells[c].size());
  }
  std::vector<std::string> lines;
  for (const Cells& cells : table) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      line += "  " + cells[c];
      if (c + 1 < columns) line += std::string(widths[c] - cells[c].size(), ' ');
    }
    lines.push_back(std::move(line));
  }
  if (rows.size() > kMostRows)
    lines.push_back("  … and " + std::to_string(rows.size() - kMostRows) + " more");
  return lines;
}

}  // namespace octet::runtime
