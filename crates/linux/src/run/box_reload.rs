//! Reloads the configuration of a box.

use std::time::Duration;

use braid_proxy::BoxCore;
use braid_proxy::app::Ctx;
use braid_proxy::config::BoxConfig;
use braid_proxy::control::{Answer, STOPPING};

use super::gateway_box::{BoxHost, SilenceDetector, warn_of_plaintext};
use super::places::Places;
use super::process::raise_descriptor_limit;
use super::reload;
use super::uplinks::in_use;
use crate::driver::Context;
use crate::net::{Result, SystemError};

/// Grace period in which a removed link keeps its path and routes, so that the ends of its subflows are sent and
/// acknowledged over the link. The value is a guess: longer than several round trips.
const LINK_REMOVAL_GRACE: Duration = Duration::from_secs(3);

impl BoxHost<'_> {
    /// Applies configurations that were read again, and answers the clients that asked for this.
    pub(super) fn take_over(&mut self, context: &mut Context<'_, BoxCore>) {
        while let Some((read, asker)) = self.reload.as_ref().and_then(|reloader| reloader.next()) {
            let outcome = read.map_err(|error| reload::refuse(&error));
            let outcome = outcome.and_then(|new| {
                if context.core.is_stopping() {
                    return Err(Answer::Wrong(STOPPING.to_owned()));
                }
                let mut config = match &self.reload {
                    Some(reloader) => reloader.config.clone(),
                    None => {
                        return Err(Answer::Error(
                            "the box was started without a configuration file".to_owned(),
                        ));
                    }
                };
                let changes = config.reload(new);
                let changed = self.change_to(context, &config);
                changed.map_err(|error| Answer::Error(error.to_string()))?;
                if let Some(reloader) = &mut self.reload {
                    reloader.config = config;
                }
                self.update_machine_faults(context.core);
                Ok(changes)
            });
            reload::report(outcome, asker);
        }
    }

    /// Changes the box to `config`. Steps that may fail come first, and are undone if one of them fails.
    fn change_to(&mut self, context: &mut Context<'_, BoxCore>, config: &BoxConfig) -> Result<()> {
        let Some(before) = self.reload.as_ref().map(|reloader| reloader.config.clone()) else {
            return Ok(());
        };
        let mut places = self.network.places.clone();
        let leave_at = context.now + LINK_REMOVAL_GRACE;
        let Some(added) = places.change(&config.links, leave_at) else {
            let action = "add so many links while removed links still close";
            return Err(SystemError::other(action, "try again in a few seconds"));
        };
        context.sockets.listen_only(&config.socks)?;
        let places = std::mem::replace(&mut self.network.places, places);
        if let Err(error) = self.change_network(config) {
            self.network.places = places;
            let undone = [
                self.change_network(&before),
                context.sockets.listen_only(&before.socks),
            ];
            for error in undone.into_iter().filter_map(Result::err) {
                tracing::error!(%error, "cannot undo a failed reload: parts of the new configuration are in \
                                         force; restart the box");
            }
            return Err(error);
        }
        self.change_core(context, config, &added);
        let changed_gateways = self.changed_gateways(&before);
        self.refresh(context);
        for place in changed_gateways {
            context
                .stack
                .revalidate_path(context.now, self.paths[place]);
        }
        self.keep_forwarding(context.core);
        if before.servers != config.servers {
            warn_of_plaintext(config);
        }
        Ok(())
    }

    /// Changes rules, settings and routing to `config`.
    fn change_network(&mut self, config: &BoxConfig) -> Result<()> {
        self.network.apply_rules(config)?;
        self.network.route(config)
    }

    /// Changes core and engine to `config`. `added` holds, for each new link, its place and its index in `config`.
    fn change_core(
        &mut self,
        context: &mut Context<'_, BoxCore>,
        config: &BoxConfig,
        added: &[(usize, usize)],
    ) {
        let streams = raise_descriptor_limit(config.limits.connections());
        context.sockets.set_max_streams(streams);
        let (now, core) = (context.now, &mut *context.core);
        let mut ctx = Ctx {
            now,
            stack: context.stack,
            downstream: context.sockets,
        };
        core.reload(&mut ctx, config);
        let network = &mut self.network;
        let v6 = network.guard.device().has_v6();
        for (place, config_index) in added {
            let uplinks = network.places.uplinks(config);
            let state = network.state_when_routed(*place);
            let number = u8::try_from(*place).unwrap_or(u8::MAX);
            let addresses = uplinks.addresses_of(number, &config.links[*config_index], &state, v6);
            network
                .addresses
                .resize(network.addresses.len().max(*place + 1), addresses);
            network.addresses[*place] = addresses;
            let addresses = in_use(addresses, &network.links, *place);
            let path = match self.paths.get(*place) {
                Some(path) => {
                    core.replace_link(now, *path, (*config_index, addresses), context.stack)
                }
                None => core.add_link(now, *config_index, addresses, context.stack),
            };
            let Ok(path) = path.inspect_err(|error| tracing::error!(%error, "cannot add a link: it carries no \
                                                                             traffic until the box is restarted"))
            else {
                continue;
            };
            debug_assert_eq!(path, Places::path(*place));
            context.tunnel.add_link(path, network.socket_mark(path));
            self.paths.resize(self.paths.len().max(*place + 1), path);
            self.silence_detectors
                .resize(self.paths.len(), SilenceDetector::default());
            self.silence_detectors[*place] = SilenceDetector::default();
        }
    }

    /// Returns the places of links whose gateway setting changed. Packets of such a link take another route
    /// although nothing about the interface changed. So the engine has to validate the paths of these links.
    fn changed_gateways(&self, before: &BoxConfig) -> Vec<usize> {
        let has_changed = |place: &usize| {
            self.network.places.link(*place).is_some_and(|link| {
                let mut links = before.links.iter();
                links.any(|old| old.goes_on_as(link) && old.gateway != link.gateway)
            })
        };
        (0..self.paths.len()).filter(has_changed).collect()
    }

    /// Removes the paths and routes of links whose grace period is over.
    pub(super) fn clear_places(&mut self, context: &mut Context<'_, BoxCore>) {
        let cleared = self.network.places.clear(context.now);
        if cleared.is_empty() {
            return;
        }
        for place in &cleared {
            let (now, path) = (context.now, self.paths[*place]);
            context.core.remove_path(now, path, context.stack);
            context.tunnel.remove(path);
            if let Some(mtu) = self.network.mtus.get_mut(*place) {
                *mtu = 0;
            }
        }
        let Some(config) = self.reload.as_ref().map(|reloader| reloader.config.clone()) else {
            return;
        };
        if let Err(error) = self.change_network(&config) {
            tracing::warn!(%error, "cannot remove all routes of a link that was removed; they stay until the \
                                    box ends");
        }
        self.refresh(context);
    }
}
