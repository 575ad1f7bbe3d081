#include "check/questions.h"

#include "octet/base/shell.h"
#include "octet/base/strings.h"

namespace octet::launch {
namespace {

// Variables come before it: PROGRAM, FOLDER, TOKEN, and SYS, the folder in which the kernel shows devices.
constexpr std::string_view kFacts = R"sh(
say() { printf '%s %s\n' "$1" "$2"; }
mpi_version() { # without its texts, as in Ubuntu 26.04, the first line of mpirun is a rule of dashes
  version=$( (mpirun --version 2>/dev/null || echo none) | head -n 1)
  case $version in '' | -*) version=$(ompi_info --version 2>/dev/null | head -n 1) ;; esac
  echo "$version"
}
amd_gpus() { # displays, and accelerators without one
  for vendor in $(grep -ls '^0x1002' "$SYS"/bus/pci/devices/*/vendor); do
    ! grep -qsE '^0x(03|1200)' "${vendor%vendor}class" || echo GPU
  done | grep -c GPU
}
kind_of() {
  if [ -d "$1" ]; then echo folder; elif [ ! -e "$1" ]; then echo missing
  else echo "file of $(wc -c <"$1" 2>/dev/null || echo unreadable) bytes"; fi
}
{
say clock "$(date +%s.%N)"
say name "$(uname -n)"
say program "$( (sha256sum "$PROGRAM" 2>/dev/null || echo missing) | cut -d' ' -f1)"
say libraries "$(ldd "$PROGRAM" 2>/dev/null | awk '/not found/ {printf "%s ", $1}')"
say mpi "$(mpi_version)"
say sees "$([ -e "$FOLDER/$TOKEN" ] && echo yes || echo no)"
say stack "$(ulimit -s)"
say memlock "$(ulimit -l)"
say files "$(ulimit -n)"
say shm "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')"
say tmp "$(df -Pk "${TMPDIR:-/tmp}" 2>/dev/null | awk 'NR == 2 {print $4}')"
say cores "$(nproc)"
say gpus "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')"
say amd "$(amd_gpus)"
)sh";

// Its arguments are the word and the ranges.
constexpr std::string_view kListener = R"perl(use Socket; $| = 1; alarm 60;
my ($word, @ranges) = @ARGV; my (@listening, $c);
for my $kind (0 .. $#ranges) {
  RANGE: for (split /,/, $ranges[$kind]) {
    my ($first, $last) = split /-/;
    for my $port ($first .. $last // $first) {
      my $s;
      socket($s, PF_INET, SOCK_STREAM, 0) && bind($s, sockaddr_in($port, INADDR_ANY)) && listen($s, 1024) or next;
      push @listening, $s; print "port $kind ", (sockaddr_in(getsockname $s))[0], "\n"; last RANGE;
    }
  }
}
print "listens\n";
for (;;) {
  my $ready = ""; vec($ready, fileno $_, 1) = 1 for \*STDIN, @listening;
  select($ready, undef, undef, undef) > 0 or next;
  exit if vec($ready, 0, 1);
  for (@listening) { if (vec($ready, fileno $_, 1) && accept($c, $_)) { syswrite $c, "$word\n"; close $c } }
}
)perl";

constexpr std::string_view kAddresses =
    R"sh(echo "addresses $(hostname -I 2>/dev/null || ip -4 -o addr show scope global | sed 's/.* inet //; s,/.*,,')"
)sh";

constexpr std::string_view kTry = R"sh(try() { # address, port, the listener's word, the answer
  if command -v bash >/dev/null 2>&1; then
    word=$(timeout 4 bash -c 'exec 3<>"/dev/tcp/$0/$1" && read -r word <&3 && echo "$word"' "$1" "$2" 2>/dev/null </dev/null)
  else
    word=$(timeout 4 perl -e 'use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0) or exit 1;
      connect($s, pack_sockaddr_in($ARGV[1], inet_aton($ARGV[0]))) or exit 1; print scalar <$s>' "$1" "$2" 2>/dev/null </dev/null)
  fi
  [ "$word" != "$3" ] || echo "$4"
}
)sh";

}  // namespace

std::string facts_script(const Question& question) {
  std::string script = "PROGRAM=" + quoted_for_shell(question.program) + " FOLDER=" + quoted_for_shell(question.folder) +
                       " TOKEN=" + quoted_for_shell(question.token) + " SYS=/sys" + std::string(kFacts);
  for (std::size_t i = 0; i < question.paths.size(); ++i)
    script += "say path" + std::to_string(i) + " \"$(kind_of " + quoted_for_shell(question.paths[i]) + ")\"\n";
  return script + "} </dev/null\n";
}

std::string listen_script(const std::string& word, const std::vector<std::string>& ranges) {
  std::string script(kAddresses);
  script += "exec perl -e " + quoted_for_shell(kListener) + " " + quoted_for_shell(word);
  for (const std::string& range : ranges) script += " " + quoted_for_shell(range);
  return script + "\n";
}

std::string connect_script(const std::vector<Target>& targets) {
  std::string script(kTry);
  for (const Target& target : targets)
    script += "try " + quoted_for_shell(target.address) + " " + std::to_string(target.port) + " " +
              quoted_for_shell(target.word) + " " + quoted_for_shell(target.answer) + " &\n";
  return script + "wait\n";
}

HostAnswer::HostAnswer(std::string_view text) {
  for (const std::string& line : split(text, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank != std::string::npos) values_.emplace(line.substr(0, blank), line.substr(blank + 1));
  }
}

const std::string& HostAnswer::value(const std::string& word) const {
  static const std::string nothing;
  const auto found = values_.find(word);
  return found == values_.end() ? nothing : found->second;
}

std::optional<std::int64_t> HostAnswer::number(const std::string& word) const {
  constexpr std::size_t kMostDigits = 18;
  const std::string& text = value(word);
  if (text.empty() || text.size() > kMostDigits || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(text);
}

}  // namespace octet::launch
