/* What goes wrong, and the lines that people see of it. */
#ifndef KVRAIL_NIXL_FAILURE_H
#define KVRAIL_NIXL_FAILURE_H

#include <stdexcept>
#include <string>

#include "interface.h"

/* What ends a call, with the words that people see. */
class Failure : public std::runtime_error {
    core::Status status_;

  public:
    Failure(core::Status status, const std::string &what)
        : std::runtime_error(what), status_(status) {}
    core::Status status() const { return status_; }
};

/* A line for people, on standard error. */
void say(const std::string &line);

#endif
