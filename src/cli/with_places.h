// Adds the places of configuration keys to the errors of a command.
#pragma once

#include <typeinfo>

#include "octet/base/error.h"
#include "octet/config/located.h"

namespace octet::cli {

/// Runs `body` and adds the places of keys to its Errors (config::located). Errors of derived types are not
/// changed.
template <typename Body>
auto with_places(const config::Resolved& resolved, const Body& body) {
  try {
    return body();
  } catch (const Error& e) {
    if (typeid(e) != typeid(Error)) throw;
    throw Error(config::located(e.problem(), resolved));
  }
}

}  // namespace octet::cli
