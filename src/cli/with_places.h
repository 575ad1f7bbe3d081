// Errors of a command that reads a configuration say where in it their keys stand.
#pragma once

#include <typeinfo>

#include "octet/base/error.h"
#include "octet/config/located.h"

namespace octet::cli {

/// Runs `body`, whose Errors come with the places of their keys (config::located); errors of other types
/// stay.
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
