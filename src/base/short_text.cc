#include "octet/base/short_text.h"

#include "octet/base/json.h"

namespace octet {

std::string short_text(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  text.resize(end);
  return text + "...";
}

std::string short_json(const Json& value, std::size_t most) {
  return short_text(value.dump(-1, ' ', false, Json::error_handler_t::replace), most);
}

}  // namespace octet
