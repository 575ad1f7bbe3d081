#include "octet/launch/hosts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string>

#include "host_names.h"
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

/// Words NAME=VALUE that may follow a host.
struct LineKey {
  std::string_view name;
  enum { ranks, most_ranks, other } means;
};
constexpr std::array kLineKeys{
    LineKey{"slots", LineKey::ranks},          LineKey{"cpu", LineKey::ranks},
    LineKey{"cpus", LineKey::ranks},           LineKey{"count", LineKey::ranks},
    LineKey{"max_slots", LineKey::most_ranks}, LineKey{"max-slots", LineKey::most_ranks},
    LineKey{"slots_max", LineKey::most_ranks}, LineKey{"username", LineKey::other},
    LineKey{"user_name", LineKey::other},      LineKey{"user-name", LineKey::other},
    LineKey{"user", LineKey::other},           LineKey{"port", LineKey::other},
    LineKey{"boards", LineKey::other},         LineKey{"num_boards", LineKey::other},
    LineKey{"sockets", LineKey::other},        LineKey{"cores", LineKey::other},
    LineKey{"binding", LineKey::other},        LineKey{"ifname", LineKey::other},
};

/// The hosts of a line, and how the line is written.
struct HostLine {
  std::vector<HostSlots> hosts;
  std::string others;      ///< words that only mpirun reads, each after a blank
  bool has_words = false;  ///< NAME slots=N, as Open MPI reads it
  bool has_colon = false;  ///< NAME:N, as MPICH reads it
  bool is_list = false;    ///< several names, or ranges of names
};

int require_slots(std::string_view number, const std::string& where) {
  if (const std::optional<int> slots = count_of(number)) return *slots;
  refuse_hosts("a host has no number of ranks", "NAME slots=N with N of at least 1",
               "'" + std::string(number) + "'", where,
               "write slots=N after the name: as many ranks as the host has GPUs");
}

// Sets the numbers that follow the names of a line.
void read_words(HostLine& line, std::string_view text, const std::string& where) {
  for (const std::string& word : split(without_blanks_at_equals(text), ' ')) {
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const auto key = std::ranges::find(kLineKeys, std::string_view(word).substr(0, equals), &LineKey::name);
    if (equals == std::string::npos || key == kLineKeys.end())
      refuse_hosts("a word after a host name has no meaning", "NAME slots=N, NAME:N or NAME",
                   "'" + word + "'", where, "write slots=N after the name, or remove the word");
    if (key->means == LineKey::other) {
      line.others += " " + word;
      continue;
    }
    line.has_words = true;
    const int number = require_slots(std::string_view(word).substr(equals + 1), where);
    for (HostSlots& host : line.hosts) {
      if (key->means == LineKey::most_ranks) host.most = number;
      if (key->means == LineKey::ranks) host.slots = number, host.is_counted = true;
    }
  }
}

// Parses a line without its comment. Returns no hosts if it names none.
HostLine parse_line(std::string_view text, const std::string& where) {
  text = trim(text);
  HostLine line;
  if (text.empty()) return line;
  const std::string_view names = text.substr(0, text.find_first_of(kBlanks));
  for (const std::string& entry : split_host_list(names)) {
    std::string_view name = entry;
    const std::optional<std::string_view> number = take_number(name);
    require_host_name(name, where);
    const int slots = number ? require_slots(*number, where) : 1;
    line.has_colon = line.has_colon || number.has_value();
    line.is_list = line.is_list || entry.size() < names.size() || is_compressed(name);
    for (std::string& host : expand_host_name(std::string(name), where))
      line.hosts.push_back({.name = std::move(host), .slots = slots, .is_counted = number.has_value()});
  }
  read_words(line, text.substr(names.size()), where);
  return line;
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

namespace {

std::vector<HostLine> read_lines(const std::string& path) {
  const std::string text = read_text(path);
  std::vector<std::string> lines = split(text, '\n');
  const bool ended = lines.back().empty();
  if (ended) lines.pop_back();
  std::vector<HostLine> found;
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
    HostLine parsed = parse_line(std::string_view(line).substr(0, comment), where);
    if (!parsed.hosts.empty()) found.push_back(std::move(parsed));
  }
  if (found.empty())
    refuse_hosts("the hostfile names no host", "a line for each host: NAME slots=RANKS",
                 std::to_string(lines.size()) + " lines without a host", path,
                 "write such lines; hostfiles/ has examples");
  return found;
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& path) {
  std::vector<HostSlots> hosts;
  for (const HostLine& line : read_lines(path))
    hosts.insert(hosts.end(), line.hosts.begin(), line.hosts.end());
  return hosts;
}

std::optional<std::string> translated_hostfile(const std::string& path, HostfileReader reader) {
  const std::vector<HostLine> lines = read_lines(path);
  const bool is_open = reader == HostfileReader::open_mpi;
  const auto is_foreign = [&](const HostLine& line) {
    return line.is_list || (is_open ? line.has_colon : line.has_words);
  };
  if (std::ranges::none_of(lines, is_foreign)) return std::nullopt;
  std::string text;
  for (const HostLine& line : lines) {
    for (const HostSlots& host : line.hosts) {
      text += host.name;
      if (host.is_counted) text += (is_open ? " slots=" : ":") + std::to_string(host.slots);
      if (is_open && host.most > 0) text += " max_slots=" + std::to_string(host.most);
      text += line.others + "\n";
    }
  }
  return text;
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
