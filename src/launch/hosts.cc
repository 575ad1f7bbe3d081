#include "octet/launch/hosts.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"

namespace octet::launch {
namespace {

constexpr std::int64_t kLargestFile = 1 << 24;
constexpr std::string_view kBlanks = " \t";

[[noreturn]] void refuse_hosts(std::string what, std::string expected, const std::string& found,
                               const std::string& where, const std::string& fix) {
  throw Error({.what = std::move(what),
               .expected = std::move(expected),
               .found = printable_line(found),
               .where = printable_line(where),
               .fix = printable_line(fix),
               .code = ExitCode::usage});
}

void require_host_name(std::string_view name, const std::string& where) {
  if (name.empty() || name.front() == '-' || name.back() == '@' || name.find("@-") != std::string_view::npos)
    refuse_hosts("a host name is not valid", "a name or an address that does not begin with -",
                 "'" + std::string(name) + "'", where, "correct the name: ssh would take it as an option");
  const auto is_odd = [](unsigned char c) {
    return std::isalnum(c) == 0 &&
           std::string_view("._:@+^%=,~[]-").find(static_cast<char>(c)) == std::string_view::npos;
  };
  if (std::ranges::any_of(name, is_odd))
    refuse_hosts("a host name has an invalid character", "letters, digits, dots and hyphens",
                 std::string(name), where,
                 "write the file as plain text (UTF-8 without a byte order mark), and correct the name");
}

// Splits `NAME:N` into its parts. An IPv6 address has several colons and no number.
std::optional<std::string_view> take_number(std::string_view& name) {
  const std::size_t colon = name.find(':');
  if (colon == std::string_view::npos || name.find(':', colon + 1) != std::string_view::npos)
    return std::nullopt;
  const std::string_view number = name.substr(colon + 1);
  name = name.substr(0, colon);
  return number;
}

std::string read_text(const std::string& path) {
  try {
    return read_regular_file(path, kLargestFile);
  } catch (const Error& e) {
    const std::string& found = e.problem().found;
    refuse_hosts("the hostfile cannot be read", "a file with a line for each host: NAME slots=RANKS",
                 e.problem().what + (found.empty() ? "" : ": " + found), path,
                 "name a file that is there; hostfiles/ has examples");
  }
}

// Open MPI reads `slots = 2` like `slots=2`.
std::string without_blanks_at_equals(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (kBlanks.find(text[i]) != std::string_view::npos) {
      const std::size_t next = text.find_first_not_of(kBlanks, i);
      const bool before = next != std::string_view::npos && text[next] == '=';
      if (before || (!out.empty() && out.back() == '=')) continue;
      out += ' ';
    } else {
      out += text[i];
    }
  }
  return out;
}

// Parses a line without its comment. Returns nullopt if it names no host.
std::optional<HostSlots> parse_line(std::string_view line, const std::string& where) {
  line = trim(line);
  if (line.empty()) return std::nullopt;
  std::string_view name = line.substr(0, line.find_first_of(kBlanks));
  const std::string rest = without_blanks_at_equals(line.substr(name.size()));
  std::string number(take_number(name).value_or("1"));
  require_host_name(name, where);
  for (const std::string& word : split(rest, ' ')) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "slots" || key == "cpu" || key == "cpus" || key == "count") number = value;
    const bool is_limit = key == "max_slots" || key == "max-slots" || key == "slots_max";
    if (is_limit && !count_of(value)) number = word;
  }
  const std::optional<int> slots = count_of(number);
  if (!slots)
    refuse_hosts("a host has no number of ranks", "NAME slots=N with N of at least 1", "'" + number + "'",
                 where, "write slots=N after the name: as many ranks as the host has GPUs");
  return HostSlots{.name = std::string(name), .slots = *slots};
}

}  // namespace

std::optional<int> count_of(std::string_view text) {
  constexpr std::size_t kMostDigits = 7;
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (text.empty() || text.size() > kMostDigits || text.front() == '0' ||
      !std::ranges::all_of(text, is_digit))
    return std::nullopt;
  return std::stoi(std::string(text));
}

std::vector<HostSlots> read_hostfile(const std::string& path) {
  const std::string text = read_text(path);
  std::vector<std::string> lines = split(text, '\n');
  const bool ended = lines.back().empty();
  if (ended) lines.pop_back();
  std::vector<HostSlots> hosts;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string where = path + ":" + std::to_string(i + 1);
    const std::string& line = lines[i];
    if (line.find('\r') != std::string::npos)
      refuse_hosts("the hostfile has line ends of Windows (CR LF), which mpirun cannot read",
                   "lines that end with LF", "a carriage return (\\r)", where,
                   "sed -i 's/\\r$//' '" + path + "'");
    const std::size_t comment = line.find('#');
    if (comment != std::string::npos && !ended && i + 1 == lines.size())
      refuse_hosts("the last line of the hostfile is a comment without a line end, which mpirun cannot read",
                   "a line end after the last line", line.substr(0, 60), where, "echo >> '" + path + "'");
    if (auto host = parse_line(std::string_view(line).substr(0, comment), where))
      hosts.push_back(std::move(*host));
  }
  if (hosts.empty())
    refuse_hosts("the hostfile names no host", "a line for each host: NAME slots=RANKS",
                 std::to_string(lines.size()) + " lines without a host", path,
                 "write such lines; hostfiles/ has examples");
  return hosts;
}

std::vector<HostSlots> parse_host_list(std::string_view list, const std::string& where) {
  if (list.empty())
    refuse_hosts("no host is named", "NAME[:RANKS],...", "nothing", where, "name hosts after " + where);
  std::vector<HostSlots> hosts;
  for (const std::string& entry : split(list, ',')) {
    std::string_view name = entry;
    const std::optional<std::string_view> number = take_number(name);
    std::optional<int> slots = 1;
    if (number && *number != "*") slots = count_of(*number);  // * means all slots of the host
    if (!slots)
      refuse_hosts("a host has no number of ranks", "NAME:N with N of at least 1", "'" + entry + "'", where,
                   "write the number of ranks after the colon, or leave both out");
    require_host_name(name, where);
    hosts.push_back({.name = std::string(name), .slots = *slots});
  }
  return hosts;
}

}  // namespace octet::launch
